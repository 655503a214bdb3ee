"""What every model of length learns from and answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from heddle.types import NO_STEP, StepView

if TYPE_CHECKING:  # agent loops make examples, and need no arrays
    from heddle.predict.buckets import Floats

LEVELS = (0.1, 0.5, 0.9)
"""Quantiles that every model tells."""


@dataclass(frozen=True, slots=True)
class Example:
    """A trajectory after ``steps_done`` steps, as a model sees it."""

    steps_done: int
    generated_tokens: int
    context_tokens: int
    prompt_tokens: int
    last_step: StepView = NO_STEP
    tool_seconds: float = 0.0
    text: str = ""
    """``User:``, ``Assistant:`` and ``Tool:`` lines, the middle of long ones left out."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """Examples with what remained; all of equal length."""

    examples: Sequence[Example]
    log_remaining: Floats
    """Logarithm of 1 + tokens."""
    weights: Floats
    """What each counts for; those of one trajectory count less the more there are."""


class LengthModel(Protocol):
    """Learns from examples and estimates others. Deterministic for equal lessons."""

    @property
    def name(self) -> str: ...

    def fit(self, lesson: Lesson) -> None:
        """Learn from scratch."""
        ...

    def predict(self, examples: Sequence[Example]) -> Floats:
        """Quantiles at ``LEVELS`` of the logarithm of 1 + remaining tokens, ascending: shape (n, 3)."""
        ...

    def save(self, folder: Path) -> None:
        """Write what was learned into an existing folder; ``load`` of the same class reads it."""
        ...
