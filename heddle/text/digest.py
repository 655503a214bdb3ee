"""A context as a length model reads it: who said what, with the middle of long pieces left out.

The same text in training and in service: a model knows only what it has read.
"""

from __future__ import annotations

from collections.abc import Sequence

from heddle.types import Message

PROMPT_CHARS, ASSISTANT_CHARS, TOOL_CHARS = 1500, 700, 500
"""Longest piece of each kind."""

HISTORY_CHARS = 2600
"""Of everything after the prompt, from its end."""


def digest(messages: Sequence[Message]) -> str:
    """``User:`` (with what the system says), then the last ``Assistant:`` and ``Tool:`` lines."""
    opening = "\n".join(m.content for m in messages if m.role in ("system", "user"))
    history: list[str] = []
    room = HISTORY_CHARS
    for message in reversed(messages):
        if message.role in ("system", "user"):
            continue
        if message.role == "assistant":
            line = f"Assistant: {shorten(message.content, ASSISTANT_CHARS)}"
        else:
            line = f"Tool: {shorten(message.content, TOOL_CHARS)}"
        room -= len(line) + 1
        if room < 0:
            break
        history.append(line)
    return "\n".join([f"User: {shorten(opening, PROMPT_CHARS)}", *reversed(history)])


def shorten(text: str, limit: int) -> str:
    """Beginning and end of a text that is longer than ``limit``, and how much was left out."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} [{len(text) - 2 * half} characters cut] {text[-half:]}"
