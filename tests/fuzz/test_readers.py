"""Whatever is in a file or on a wire, a reader gives a value, or an error of Heddle's own that says why not.

Two kinds of input: anything at all, and good input with one wound.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from heddle.agent import journal
from heddle.cli.lengths import parse_lengths
from heddle.cli.tasks import parse_tasks
from heddle.control.build import PlaneSettings, build_plane
from heddle.control.events import (
    BatchSubmitted,
    Event,
    PoolRequested,
    StepGenerated,
    TrajectoryEnding,
    TrajectoryFinished,
    TrajectorySpec,
    WorkerReady,
)
from heddle.control.log import decode_entry, decode_header, encode_entry, encode_header
from heddle.errors import HeddleError
from heddle.planning.profile_csv import parse_profiles
from heddle.records import decode_trajectory
from heddle.simulate.readers import read_workload
from heddle.types import BatchId, GroupId, StopReason, TrajectoryId, WorkerId

ROOT = Path(__file__).parents[2]
EXAMPLES, ALL_EXAMPLES = 60, 3000


def head(path: str, lines: int) -> bytes:
    """The beginning of a file of this repository."""
    return b"".join((ROOT / path).read_bytes().splitlines(keepends=True)[:lines])


@dataclass(frozen=True, slots=True)
class Reader:
    """A reader, input that it takes, and what it raises for the rest."""

    name: str
    read: Callable[[bytes], object]
    good: bytes
    refusal: type[Exception] = HeddleError

    def reads_or_refuses(self, content: bytes) -> None:
        with suppress(self.refusal):
            self.read(content)


def recorded_lines() -> list[bytes]:
    """A trajectory of one step, as a control plane heard of it."""
    spec = TrajectorySpec(TrajectoryId("b-g0-t0"), GroupId("b-g0"), 4, 100, context_tokens=4)
    events: tuple[Event, ...] = (
        PoolRequested(1),
        WorkerReady(WorkerId("w0"), 1, None),
        BatchSubmitted(BatchId("b"), (spec,)),
        StepGenerated(spec.trajectory_id, WorkerId("w0"), 0, 4, 0, 7),
        TrajectoryEnding(spec.trajectory_id),
        TrajectoryFinished(spec.trajectory_id, StopReason.COMPLETED),
    )
    plane = build_plane(PlaneSettings(pool="1"))
    return [encode_entry(n, n, event, plane.handle(event, n), None) for n, event in enumerate(events)]


def step(output: int, tool: str | None) -> dict[str, object]:
    seconds = 1.5 if tool else None
    return {"prompt_tokens": 10, "output_tokens": output, "tool_name": tool, "tool_seconds": seconds}


TRACE = orjson.dumps({"trajectory_id": "a/0", "prompt_id": "a", "steps": [step(5, "search"), step(7, None)]})
MOONCAKE = b"""{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [1], "session_id": "s"}
{"timestamp": 9, "input_length": 13, "output_length": 2, "hash_ids": [1, 3], "session_id": "s", "delay": 15}
"""
LOG_LINE = encode_entry(0, 1.0, PoolRequested(2), [], None)
LOG = b"\n".join([encode_header(PlaneSettings()), *recorded_lines(), b""])

LENGTHS = b'{"tokens": 100, "quantiles": {"0.9": 300}}\n' * 2

READERS = [
    Reader(
        "profile",
        lambda content: parse_profiles(content.decode("utf-8-sig", "replace"), source="f"),
        head("heddle/planning/data/modelled.csv", 9),
    ),
    Reader("trace", lambda content: read_workload(content, name="f"), TRACE),
    Reader("mooncake", lambda content: read_workload(content, name="f"), MOONCAKE),
    Reader("recorded", lambda content: read_workload(content, name="f"), LOG),
    Reader("tasks", lambda content: parse_tasks(content, name="f"), head("examples/my_tasks.jsonl", 3)),
    Reader(
        "lengths",
        lambda content: parse_lengths(content, name="f"),
        LENGTHS,
    ),
    Reader("log header", decode_header, encode_header(PlaneSettings())),
    Reader("log line", decode_entry, LOG_LINE),
    Reader("record", decode_trajectory, head("tests/export/golden/record.jsonl", 1), ValidationError),
    Reader("generated", journal.decode_generated, b'{"step": {}}', ValidationError),
    Reader("observed", journal.decode_observed, b'{"step_index": 0}', ValidationError),
    Reader("call", journal.decode_finished, b'{"key": "a", "result": {}}', ValidationError),
]

WORDS = st.sampled_from(
    [b"", b"null", b"-1", b"1e999", b"NaN", b'"', b"{", b"[", b"]", b",", b":", b"\n", b"\r", b"\0", b"\xff",
     b"9" * 30, b"[" * 2000, b'{"a":' * 500, b"\xed\xa0\x80", b"0.5", b"true", b"\xef\xbb\xbf", b"=cmd"]
)  # fmt: skip


def examples(full: bool) -> settings:
    return settings(max_examples=ALL_EXAMPLES if full else EXAMPLES, database=None)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_anything_is_read_or_refused(reader: Reader, full: bool) -> None:
    """Bytes at random, and words that have broken parsers before."""

    @examples(full)
    @given(st.binary(max_size=120) | st.lists(WORDS, max_size=6).map(b"".join))
    def attempt(content: bytes) -> None:
        reader.reads_or_refuses(content)

    attempt()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_good_input_with_a_wound_is_read_or_refused(reader: Reader, full: bool) -> None:
    """Something is cut out, doubled or put in its place, anywhere."""

    @examples(full)
    @given(
        st.integers(0, len(reader.good)),
        st.integers(0, 12),
        WORDS | st.binary(max_size=4) | st.just(reader.good[:40]),
    )
    def attempt(at: int, cut: int, put: bytes) -> None:
        reader.reads_or_refuses(reader.good[:at] + put + reader.good[at + cut :])

    attempt()


@pytest.mark.parametrize(
    "reader", [reader for reader in READERS if reader.refusal is HeddleError], ids=lambda r: r.name
)
def test_the_good_input_is_good(reader: Reader) -> None:
    """Or its wounds would prove nothing."""
    reader.read(reader.good)
