"""One step for everybody before anybody gets the next one, whatever it is worth."""

from __future__ import annotations

from heddle.types import TrajectoryView


class RoundRobin:
    """Whoever has done the fewest steps generates first; within a round by entry into the queue."""

    name = "round_robin"
    margin: float | None = None
    predictive = False

    def priority(self, trajectory: TrajectoryView, now: float) -> float:
        """Fewer finished steps rank higher."""
        return -float(trajectory.steps_done)
