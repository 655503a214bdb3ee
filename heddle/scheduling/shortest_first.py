"""Shortest predicted remaining first: the best mean completion time, the worst makespan."""

from __future__ import annotations

from heddle.scheduling.estimate import expected_remaining_tokens
from heddle.types import TrajectoryView


class ShortestFirst:
    """Whoever is expected to end soonest generates first."""

    name = "shortest_first"
    predictive = True

    def __init__(self, margin_tokens: float) -> None:
        self.margin: float | None = margin_tokens

    def priority(self, trajectory: TrajectoryView, now: float) -> float:
        """Negated tokens still expected."""
        return -expected_remaining_tokens(trajectory)
