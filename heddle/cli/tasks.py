"""Task files: JSON lines of ``{"prompt_id"?, "environment"?, "task": {...}, "metadata"?}``.

Every complaint names file, line and field, also those that the coordinator makes later about
``prompts[i]``: a :class:`TaskFile` remembers which line each prompt came from.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from heddle.api.schemas import PromptRequest
from heddle.api.strictjson import parse_json
from heddle.errors import InvalidRequest
from heddle.validation import field_names, first_fault

STDIN = "-"
"""The file name that means standard input."""

_PROMPT_PATH = re.compile(r"^prompts\[(\d+)\]\.?")


@dataclass(frozen=True, slots=True)
class TaskFile:
    """The prompts of one file and the lines they stood on."""

    name: str
    prompts: tuple[PromptRequest, ...]
    lines: tuple[int, ...]

    def locate(self, error: InvalidRequest) -> InvalidRequest:
        """The same complaint, with ``prompts[i].field`` turned into ``file:line: field``."""
        match = _PROMPT_PATH.match(error.path)
        if match is None or int(match[1]) >= len(self.lines):
            return error
        field = error.path[match.end() :] or "line"
        path = f"{self.name}:{self.lines[int(match[1])]}: {field}"
        return InvalidRequest(error.message, path=path, code=error.code)


def read_tasks(source: str) -> TaskFile:
    """Read a task file, or stdin for ``-``. Raises ``InvalidRequest`` at the first bad line."""
    name = "<stdin>" if source == STDIN else source
    try:
        content = sys.stdin.buffer.read() if source == STDIN else Path(source).read_bytes()
    except OSError as exc:
        raise InvalidRequest(f"cannot be read: {exc.strerror}", path=name) from exc
    return parse_tasks(content, name=name)


def parse_tasks(content: bytes, *, name: str) -> TaskFile:
    """Parse the lines of a task file; blank lines are skipped. Raises ``InvalidRequest``."""
    numbered = [(number, line) for number, line in enumerate(content.split(b"\n"), 1) if line.strip()]
    if not numbered:
        raise InvalidRequest("holds no tasks", path=name)
    prompts = tuple(_parse_line(line, where=f"{name}:{number}") for number, line in numbered)
    return TaskFile(name=name, prompts=prompts, lines=tuple(number for number, _ in numbered))


def _parse_line(line: bytes, *, where: str) -> PromptRequest:
    try:
        return PromptRequest.model_validate(parse_json(line))
    except InvalidRequest as exc:
        field = "line" if exc.path == "body" else exc.path
        raise InvalidRequest(exc.message, path=f"{where}: {field}") from exc
    except ValidationError as exc:
        fault = first_fault(exc, field_names(PromptRequest))
        raise InvalidRequest(fault.message, path=f"{where}: {fault.where or 'line'}") from exc
