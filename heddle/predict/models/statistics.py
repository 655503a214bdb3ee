"""Counts of a trajectory and of its text, as trees read them."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

import numpy as np

from heddle.predict.buckets import Floats
from heddle.predict.models.base import Example

_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_TROUBLE = re.compile(r"(?i)\b(?:error|traceback|exception|failed|fatal)\b")
_SUCCESS = re.compile(r"(?i)\b(?:passed|success|completed|done)\b")
_WORDS = ("edit", "plan", "pytest", "pip", "answer", "boxed")
"""Whose frequency says what the agent is at: changing files, planning, testing, installing, concluding."""

_TOOL_CODES = 97
"""Names of tools are told apart by this many codes."""


def table(examples: Sequence[Example]) -> Floats:
    """One row an example; the columns are those of :func:`_counts` and of :func:`_text_statistics`."""
    return np.array([_counts(e) + _text_statistics(e.text) for e in examples], dtype=np.float64)


def _counts(example: Example) -> list[float]:
    step = example.last_step
    mean_step = example.generated_tokens / max(1, example.steps_done)
    counts = (
        example.steps_done,
        example.generated_tokens,
        example.context_tokens,
        example.prompt_tokens,
        step.output_tokens,
        step.appended_tokens,
        step.tool_seconds or 0.0,
        example.tool_seconds,
        mean_step,
    )
    tools = zlib.crc32("+".join(step.tool_names).encode()) % _TOOL_CODES
    return [*np.log1p(counts).tolist(), float(tools)]


def _text_statistics(text: str) -> list[float]:
    prompt, rest = _split(text, text.find("\nAssistant:"))
    _, tool = _split(rest, rest.rfind("\nTool:"))
    _, last = _split(rest, rest.rfind("\nAssistant:"))
    said = last.split("\nTool:", 1)[0]
    lowered = rest.lower()
    return [
        len(prompt),
        len(_NUMBER.findall(prompt)),
        *(prompt.count(mark) for mark in ("?", ".", "```", "\n")),
        len(rest),
        len(said),
        len(_NUMBER.findall(said)),
        said.count("\n"),
        len(tool),
        len(_NUMBER.findall(tool)),
        len(_TROUBLE.findall(tool)),
        len(_SUCCESS.findall(tool)),
        len(_TROUBLE.findall(rest)),
        len(_SUCCESS.findall(rest)),
        *(lowered.count(word) for word in _WORDS),
    ]


def _split(text: str, position: int) -> tuple[str, str]:
    """Before and from ``position``; everything before where it is negative."""
    return (text, "") if position < 0 else (text[:position], text[position:])
