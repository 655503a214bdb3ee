"""What comes from outside cannot forge a line of the log, nor colour a terminal."""

from __future__ import annotations

import io

import pytest
import structlog

from heddle.cli.logs import _configure
from heddle.config import HeddleConfig

FORGED = "2026-01-01T00:00:00Z [error    ] the coordinator was stopped"
HOSTILE = [
    f"gone\n{FORGED}",
    f"gone\r\n{FORGED}",
    f"gone\u2028{FORGED}",
    "\x1b[2J\x1b[31mred",
    "a\x00b",
    "\x85next",
]


@pytest.mark.parametrize("value", HOSTILE)
def test_a_value_stays_in_its_line(value: str) -> None:
    """As a text, inside a list, and as the message of an exception."""
    stream = io.StringIO()
    _configure(stream, HeddleConfig(), colors=False)
    structlog.get_logger().warning("worker.lost", reason=value, gates=[value], error=ValueError(value))
    [line] = stream.getvalue().splitlines()
    assert "worker.lost" in line
    assert line.isprintable()


def test_a_traceback_tells_no_variables_and_forges_no_line() -> None:
    """Its lines are indented, and what functions were called with is not among them."""
    stream = io.StringIO()
    _configure(stream, HeddleConfig(), colors=False)

    def authorise(token: str) -> None:
        raise ValueError(f"gone\n{FORGED}")

    try:
        authorise("".join(["s", "esame"]))
    except ValueError:
        structlog.get_logger().exception("http.failed")

    first, *others = stream.getvalue().splitlines()
    assert "http.failed" in first
    assert any("in authorise" in line for line in others)
    assert all(line.startswith("    ") and line.isprintable() for line in others)
    assert "sesame" not in stream.getvalue()
