"""The programs that run model-written code inside the sandbox, and how their reports are read.

The submission travels as a string literal, never pasted into the program. Expected values never enter
the sandbox: the program evaluates calls and reports what came back, the comparison happens out here, on
plain JSON values. So code that prints "passed", ends the process or returns an object equal to
everything gains nothing; a marker drawn for each call keeps what it prints apart from the report.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from heddle.types import Json


@dataclass(frozen=True, slots=True)
class CallReport:
    """What one call came to: a value, or an error in a line."""

    value: Json
    text: str
    """The value as Python writes it, or the error."""
    failed: bool


@dataclass(frozen=True, slots=True)
class RunReport:
    """What a submission came to. ``calls[i]`` is ``None`` where the program ended before call i."""

    calls: tuple[CallReport | None, ...]
    broken: str | None
    """Why no call could be made at all."""


def show_last_value(source: str) -> str:
    """A program that runs ``source`` and, as a notebook does, prints the value of its last expression."""
    return f"{_inside()}\nshow_last_value({source!a})\n"


def call_and_report(marker: str, name: str, source: str, calls: Sequence[Sequence[Json]]) -> str:
    """A program that defines ``source`` and calls its function ``name`` with each of ``calls`` in turn.

    Arguments are decoded afresh for each call: a submission that changes them harms only itself.
    """
    arguments = [json.dumps(list(call)) for call in calls]
    return f"{_inside()}\ncall_and_report({marker!a}, {name!a}, {source!a}, {arguments!a})\n"


def read_report(output: str, marker: str, calls: int) -> RunReport:
    """Read the report on ``calls`` calls; lines without the marker are the submission's own.

    The first report of a call counts. A line that the output limit cut in two is no report.
    """
    reports: list[CallReport | None] = [None] * calls
    broken: str | None = None
    for line in output.splitlines():
        entry = _entry(line, marker)
        if entry is None:
            continue
        index, report = entry
        if index == -1:
            broken = broken or report.text
        elif 0 <= index < calls and reports[index] is None:
            reports[index] = report
    return RunReport(tuple(reports), broken)


def equal(got: Json, expected: Json) -> bool:
    """Equality of JSON values in which ``True`` is not 1; numbers may differ by 1e-6, relatively."""
    if isinstance(got, bool) or isinstance(expected, bool):
        return got is expected
    if isinstance(got, int | float) and isinstance(expected, int | float):
        return got == expected or abs(got - expected) <= 1e-6 * abs(expected)
    if isinstance(got, list) and isinstance(expected, list):
        return len(got) == len(expected) and all(map(equal, got, expected))
    if isinstance(got, dict) and isinstance(expected, dict):
        return got.keys() == expected.keys() and all(equal(got[key], expected[key]) for key in expected)
    return got == expected


@cache
def _inside() -> str:
    return (files("heddle.environments") / "inside.py").read_text(encoding="utf-8")


def _entry(line: str, marker: str) -> tuple[int, CallReport] | None:
    if not line.startswith(marker):
        return None
    try:
        entry = json.loads(line.removeprefix(marker))
    except (ValueError, RecursionError):  # a value nested without end is no value that a test expects
        return None
    match entry:
        case [int(index), str(kind), value, str(text)]:
            return index, CallReport(value=value, text=text, failed=kind != "value")
        case _:
            return None
