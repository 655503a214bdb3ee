"""Files of predicted lengths: one number a line, or JSON lines of ``{"tokens": N, "quantiles"?: {...}}``.

A number is the tokens that one trajectory will generate. ``quantiles`` maps levels to tokens,
``{"0.1": 80, "0.9": 900}``; ``tokens`` stands at level 0.5 where they do not name it. All lines that have
quantiles have the same levels, and a line without is one whose length is certain. Other keys are ignored,
and so are blank lines; a file without lengths is one of no trajectories. Every complaint names file and line.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import orjson

from heddle.errors import InvalidRequest
from heddle.planning.plan import MAX_TOKENS

STDIN = "-"
"""The file name that means standard input."""
MEDIAN = 0.5

Quantiles = Mapping[float, float]
"""Tokens by level, ascending in both, :data:`MEDIAN` among the levels."""


@dataclass(frozen=True, slots=True)
class LengthsFile:
    """What a file says of its trajectories, in the order of its lines."""

    levels: tuple[float, ...]
    """Ascending, in (0, 1); 0.5 alone where no line has quantiles."""
    quantiles: tuple[tuple[float, ...], ...]
    """Tokens at each of ``levels``, one row a trajectory, ascending."""


def read_lengths(source: str) -> LengthsFile:
    """Read a file of lengths, or stdin for ``-``. Raises ``InvalidRequest`` at the first bad line."""
    name = "<stdin>" if source == STDIN else source
    try:
        content = sys.stdin.buffer.read() if source == STDIN else Path(source).read_bytes()
    except OSError as exc:
        raise InvalidRequest(f"cannot be read: {exc.strerror}", path=name) from exc
    return parse_lengths(content, name=name)


def parse_lengths(content: bytes, *, name: str) -> LengthsFile:
    """Parse the lines of a file of lengths. Raises ``InvalidRequest`` with ``name:line``."""
    rows: list[Quantiles] = []
    levels: tuple[float, ...] = (MEDIAN,)
    levels_from = 0
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if not line.strip():
            continue
        where = f"{name}:{number}"
        row = _parse_line(line.strip(), where)
        if len(row) > 1 and tuple(row) != levels:
            if levels_from:
                raise InvalidRequest(
                    f"quantiles at other levels than those of line {levels_from}", path=where
                )
            levels, levels_from = tuple(row), number
        rows.append(row)
    return LengthsFile(levels, tuple(tuple(row.get(lv, row[MEDIAN]) for lv in levels) for row in rows))


def _parse_line(line: bytes, where: str) -> Quantiles:
    if not line.startswith(b"{"):
        return {MEDIAN: _tokens(_number(line), where)}
    try:
        entry = orjson.loads(line)
    except orjson.JSONDecodeError as exc:
        raise InvalidRequest(f"not JSON: {exc}", path=where) from exc
    if "tokens" not in entry:
        raise InvalidRequest("no tokens", path=where)
    quantiles = entry.get("quantiles")
    if quantiles is None:
        quantiles = {}
    if not isinstance(quantiles, dict):
        raise InvalidRequest(f"must map levels to tokens, got {_show(quantiles)}", path=f"{where}: quantiles")
    tokens = {MEDIAN: _tokens(entry["tokens"], f"{where}: tokens")}
    named = {
        _level(key, where): _tokens(value, f"{where}: quantiles.{key}") for key, value in quantiles.items()
    }
    if len(named) != len(quantiles):
        raise InvalidRequest("a level is given twice", path=f"{where}: quantiles")
    ascending = dict(sorted((tokens | named).items()))
    if any(low > high for low, high in pairwise(ascending.values())):
        listed = ", ".join(f"{level:g}: {value:g}" for level, value in ascending.items())
        raise InvalidRequest(
            f"tokens must not fall as the level rises, got {listed}", path=f"{where}: quantiles"
        )
    return ascending


def _number(text: bytes) -> object:
    try:
        return float(text)
    except ValueError:
        return text.decode(errors="replace")


def _tokens(value: object, where: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MAX_TOKENS:
        return float(value)
    raise InvalidRequest(
        f"must be a number of tokens from 0 to {MAX_TOKENS:g}, got {_show(value)}", path=where
    )


def _level(key: str, where: str) -> float:
    level = _number(key.encode())
    if isinstance(level, float) and 0 < level < 1:
        return level
    raise InvalidRequest(f"a level lies between 0 and 1, got {_show(key)}", path=f"{where}: quantiles")


def _show(value: object, limit: int = 40) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
