"""First come, first served, by entry into the queue: what serving engines do by default."""

from __future__ import annotations

from heddle.types import TrajectoryView


class Fcfs:
    """Whoever asked for its step first generates first; an interrupted step keeps its place."""

    name = "fcfs"
    margin: float | None = None
    predictive = False

    def priority(self, trajectory: TrajectoryView, now: float) -> float:
        """Earlier arrivals rank higher; nothing else counts."""
        return -float(trajectory.arrival)
