"""Longest remaining first as far as the predictor has proved right, else first come, first served.

A rank is the expected rest times the earned trust. Without trust all ranks are 0, and equals go by their
arrival; with little of it a lead must be that much larger to interrupt anybody.
"""

from __future__ import annotations

from collections.abc import Callable

from heddle.planning.trust import earned_order
from heddle.scheduling.estimate import expected_remaining_tokens
from heddle.types import TrajectoryView, Trust


class Earned:
    """Between ``fcfs`` and ``progressive``, by measured trust."""

    name = "earned"
    predictive = True

    def __init__(self, margin_tokens: float, trust: Callable[[], Trust | None]) -> None:
        self.margin: float | None = margin_tokens
        self._trust = trust

    def priority(self, trajectory: TrajectoryView, now: float) -> float:
        """Tokens still expected, discounted."""
        level = earned_order(self._trust())
        return level * expected_remaining_tokens(trajectory) if level else 0.0
