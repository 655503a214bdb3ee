"""Which format a file has, told by its first line, and its reader."""

from __future__ import annotations

from enum import StrEnum

import orjson

from heddle.errors import InvalidRequest
from heddle.simulate.readers.lines import numbered
from heddle.simulate.readers.mooncake import parse_mooncake
from heddle.simulate.readers.recorded import parse_recorded
from heddle.simulate.readers.trace import parse_trace
from heddle.simulate.workload import Workload


class TraceFormat(StrEnum):
    """What can be read."""

    TRACE = "trace"
    MOONCAKE = "mooncake"
    EVENT_LOG = "event_log"


_TELLING: tuple[tuple[str, TraceFormat], ...] = (
    ("heddle_event_log", TraceFormat.EVENT_LOG),
    ("steps", TraceFormat.TRACE),
    ("input_length", TraceFormat.MOONCAKE),
    ("input_tokens", TraceFormat.MOONCAKE),
)
"""A key of the first line, and the format that has it."""


def read_workload(content: bytes, *, name: str) -> Workload:
    """The workload in a file of any of the formats. Raises ``InvalidRequest``."""
    fmt = format_of(content, name=name)
    if fmt is TraceFormat.EVENT_LOG:
        return parse_recorded(content, name=name).workload
    return (parse_trace if fmt is TraceFormat.TRACE else parse_mooncake)(content, name=name)


def format_of(content: bytes, *, name: str) -> TraceFormat:
    """Told by the first line that is not blank. Raises ``InvalidRequest`` for a foreign file."""
    where, line = next(numbered(content, name), (name, b""))
    if not line:
        raise InvalidRequest("is empty", path=name)
    try:
        first = orjson.loads(line)
    except orjson.JSONDecodeError as exc:
        raise InvalidRequest(f"not a line of JSON: {exc}", path=where) from exc
    keys = first if isinstance(first, dict) else {}
    for key, fmt in _TELLING:
        if key in keys:
            return fmt
    telling = ", ".join(f"{key!r} ({fmt})" for key, fmt in _TELLING)
    raise InvalidRequest(f"of no known format: its first line has none of {telling}", path=where)
