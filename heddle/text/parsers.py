"""Tool calls in generated text: siblings behind one protocol, chosen by name.

``hermes``  ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, any number of them in a text
``openai``  the whole text is one JSON object: a call, or ``{"tool_calls": [{"function": ...}]}``
``fenced``  each Python code block is a call of one named tool

A parser never raises and never evaluates: a malformed call is data, a message from which the model that
made it can learn. Everything runs in time linear in the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from heddle.errors import ConfigError
from heddle.text import strict_json
from heddle.text.strict_json import InvalidJson
from heddle.types import Json, ToolCall

CALL_OPENING = "<tool_call>"
CALL_CLOSING = "</tool_call>"

MAX_CALLS = 64
"""Calls (malformed ones too) read from one text; what follows is one error. An error costs time linear
in the whole text, so without a bound a flood of opening tags would take minutes."""
TOO_MANY_CALLS = f"more than {MAX_CALLS} tool calls in one turn; the rest is ignored"


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """What a generation says outside of its calls, its calls in order, and one message per bad call."""

    content: str
    calls: tuple[ToolCall, ...]
    errors: tuple[str, ...]


class ToolCallParser(Protocol):
    """Finds the tool calls in what a model wrote."""

    def parse(self, text: str, *, step_index: int) -> ParsedTurn:
        """Call ids are ``call_{step_index}_{n}``, with n counting the well-formed calls from 0."""
        ...


@dataclass(frozen=True, slots=True)
class ReplayParser:
    """The calls of a recording, whatever the text says; steps beyond it make none."""

    calls: tuple[tuple[ToolCall, ...], ...]
    """By step."""

    def parse(self, text: str, *, step_index: int) -> ParsedTurn:
        """All of the text is content."""
        calls = self.calls[step_index] if step_index < len(self.calls) else ()
        return ParsedTurn(text, calls, ())


class _BadCall(ValueError):
    """One call that cannot be made; the message is for the model."""


@dataclass(frozen=True, slots=True)
class _NamedCall:
    name: str
    arguments: dict[str, Json]


class HermesParser:
    """``<tool_call>`` tags around JSON; the closing tag may be missing at the end of the text."""

    def parse(self, text: str, *, step_index: int) -> ParsedTurn:
        content: list[str] = []
        calls: list[_NamedCall] = []
        errors: list[str] = []
        position = 0
        while (opening := text.find(CALL_OPENING, position)) >= 0:
            content.append(text[position:opening])
            if len(calls) + len(errors) == MAX_CALLS:
                errors.append(TOO_MANY_CALLS)
                position = len(text)
                break
            start = opening + len(CALL_OPENING)
            try:
                call, position = _tagged_call(text, start)
                calls.append(call)
            except (InvalidJson, _BadCall) as exc:
                errors.append(f"tool call {len(calls) + len(errors) + 1}: {exc}")
                position = _after_bad_call(text, start)
        content.append(text[position:])
        return _turn("".join(content), calls, errors, step_index)


class OpenAiParser:
    """The whole text is one JSON object; any other text is an answer in words."""

    def parse(self, text: str, *, step_index: int) -> ParsedTurn:
        stripped = text.strip()
        if not stripped.startswith("{"):
            return _turn(text, [], [], step_index)
        try:
            value = strict_json.loads(stripped)
        except InvalidJson as exc:
            meant_as_call = '"tool_calls"' in stripped or '"arguments"' in stripped
            return _turn(text, [], [f"tool call 1: {exc}"] if meant_as_call else [], step_index)
        if not isinstance(value, dict) or not {"name", "tool_calls"} & value.keys():
            return _turn(text, [], [], step_index)
        content = value.get("content")
        return _openai_turn(value, content if isinstance(content, str) else "", step_index)


class FencedParser:
    """Every Python code block is a call ``tool(argument=code)``."""

    def __init__(self, *, tool: str = "python", argument: str = "code") -> None:
        self._tool = tool
        self._argument = argument

    def parse(self, text: str, *, step_index: int) -> ParsedTurn:
        content: list[str] = []
        calls: list[_NamedCall] = []
        errors: list[str] = []
        code: list[str] | None = None
        for line in text.splitlines(keepends=True):
            mark = line.strip()
            if code is None and mark in ("```python", "```py"):
                if len(calls) + len(errors) == MAX_CALLS:
                    errors.append(TOO_MANY_CALLS)
                    break
                code = []
            elif code is not None and mark == "```":
                try:
                    calls.append(self._call("".join(code)))
                except _BadCall as exc:
                    errors.append(f"tool call {len(calls) + len(errors) + 1}: {exc}")
                code = None
            else:
                (content if code is None else code).append(line)
        if code is not None:
            number = len(calls) + len(errors) + 1
            errors.append(f"tool call {number}: the code block is not closed with ```")
        return _turn("".join(content), calls, errors, step_index)

    def _call(self, code: str) -> _NamedCall:
        try:
            code.encode()
        except UnicodeEncodeError as exc:
            raise _BadCall(f"the code is not valid Unicode: {exc.reason}") from exc
        return _NamedCall(self._tool, {self._argument: code})


def make_parser(name: str) -> ToolCallParser:
    """The parser of that name, with its defaults. Raises ``ConfigError`` for an unknown name."""
    match name:
        case "hermes":
            return HermesParser()
        case "openai":
            return OpenAiParser()
        case "fenced":
            return FencedParser()
        case _:
            raise ConfigError(f"unknown tool-call parser {name!r}; choose hermes, openai or fenced")


def _turn(content: str, calls: Iterable[_NamedCall], errors: list[str], step_index: int) -> ParsedTurn:
    numbered = tuple(
        ToolCall(f"call_{step_index}_{n}", call.name, call.arguments) for n, call in enumerate(calls)
    )
    return ParsedTurn(content.strip(), numbered, tuple(errors))


def _tagged_call(text: str, start: int) -> tuple[_NamedCall, int]:
    """The call whose JSON follows at ``start``, and where the text goes on after its closing tag."""
    value, end = strict_json.scan(text, strict_json.skip_space(text, start))
    call = _named_call(value)
    closing = strict_json.skip_space(text, end)
    if closing == len(text):
        return call, closing
    if not text.startswith(CALL_CLOSING, closing):
        raise _BadCall(f"expected {CALL_CLOSING} after the JSON object")
    return call, closing + len(CALL_CLOSING)


def _after_bad_call(text: str, start: int) -> int:
    """Go on after the closing tag of the bad call, or at the next opening if that comes first."""
    opening = text.find(CALL_OPENING, start)
    bound = len(text) if opening < 0 else opening
    closing = text.find(CALL_CLOSING, start, bound)
    return bound if closing < 0 else closing + len(CALL_CLOSING)


def _named_call(value: Json) -> _NamedCall:
    if not isinstance(value, dict):
        raise _BadCall('expected a JSON object {"name": ..., "arguments": {...}}')
    name = value.get("name")
    if not isinstance(name, str) or not name:
        raise _BadCall('"name" must be the name of a tool')
    arguments = value.get("arguments")
    if not isinstance(arguments, dict):
        raise _BadCall('"arguments" must be a JSON object')
    return _NamedCall(name, arguments)


def _openai_turn(value: Mapping[str, Json], content: str, step_index: int) -> ParsedTurn:
    entries = value.get("tool_calls", [dict(value)])
    if not isinstance(entries, list) or len(entries) > MAX_CALLS:
        error = f'"tool_calls" must be an array of at most {MAX_CALLS} calls'
        return _turn(content, [], [error], step_index)
    calls: list[_NamedCall] = []
    errors: list[str] = []
    for number, entry in enumerate(entries, start=1):
        try:
            calls.append(_openai_call(entry))
        except (InvalidJson, _BadCall) as exc:
            errors.append(f"tool call {number}: {exc}")
    return _turn(content, calls, errors, step_index)


def _openai_call(entry: Json) -> _NamedCall:
    """``{"function": {...}}`` or its inner object; ``arguments`` is an object or its JSON as a string."""
    function = entry.get("function", entry) if isinstance(entry, dict) else entry
    if isinstance(function, dict) and isinstance(function.get("arguments"), str):
        function = {**function, "arguments": strict_json.loads(str(function["arguments"]))}
    return _named_call(function)
