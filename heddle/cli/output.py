"""What a command says, and how it ends.

With ``--json`` stdout carries JSON and nothing else: one document, or one object per line. Without it
stdout carries the text for people. Progress and notes go to stderr in either case.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console, RenderableType

from heddle.errors import ConfigError, HeddleError, InvalidRequest

PIPE_WIDTH = 120
"""Columns of a table where stdout is a file or a pipe, which has no width of its own."""


class ExitCode(IntEnum):
    """How a command ended."""

    OK = 0
    FAILED = 1
    """The work failed, was cancelled, or a server could not be reached."""
    USAGE = 2
    """The command line, the configuration or the input is wrong; the message names the field."""


class CommandFailed(HeddleError):
    """A command cannot do its work; the message is for the person who typed it."""


@dataclass(frozen=True, slots=True)
class Output:
    """Where a command writes. One per command; ``json`` is its ``--json`` flag."""

    json: bool

    def document(self, value: Any) -> None:
        """The one document of a ``--json`` command, indented; dataclasses are allowed."""
        _write(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS))

    def line(self, value: Any) -> None:
        """One object of a ``--json`` command that prints many."""
        _write(orjson.dumps(value))

    def text(self, renderable: RenderableType) -> None:
        """Text for people, on stdout."""
        width = None if sys.stdout.isatty() else PIPE_WIDTH
        # soft_wrap keeps paths and URLs whole where a line is longer than the screen
        Console(soft_wrap=isinstance(renderable, str), width=width, highlight=False, markup=False).print(
            renderable
        )

    def note(self, text: str) -> None:
        """A remark on stderr, in either mode."""
        Console(stderr=True, soft_wrap=True, highlight=False, markup=False).print(text)


def _write(payload: bytes) -> None:
    sys.stdout.write(payload.decode("utf-8") + "\n")
    sys.stdout.flush()


@contextmanager
def reported(output: Output) -> Iterator[None]:
    """Turn Heddle's errors into a message and an exit code: the boundary of every command."""
    try:
        yield
    except InvalidRequest as exc:
        _report(output, code=exc.code, message=exc.message, path=exc.path)
        raise SystemExit(ExitCode.USAGE) from exc
    except ConfigError as exc:
        _report(output, code="bad_config", message=str(exc), path=None)
        raise SystemExit(ExitCode.USAGE) from exc
    except HeddleError as exc:
        _report(output, code="failed", message=str(exc), path=None)
        raise SystemExit(ExitCode.FAILED) from exc
    except BrokenPipeError:  # the reader has enough; Typer ends the command quietly
        raise
    except OSError as exc:
        what = exc.strerror or str(exc)
        output.note(f"heddle: {exc.filename}: {what}" if exc.filename else f"heddle: {what}")
        raise SystemExit(ExitCode.FAILED) from exc


def _report(output: Output, *, code: str, message: str, path: str | None) -> None:
    output.note(f"heddle: {path}: {message}" if path else f"heddle: {message}")
    if output.json:
        output.document({"error": {"code": code, "message": message, "path": path}})


def check_writable(path: Path, option: str) -> None:
    """Before the work rather than after it. Raises ``InvalidRequest``."""
    if not path.parent.is_dir() or path.is_dir():
        raise InvalidRequest(f"{path} is not a file in an existing folder", path=option)
