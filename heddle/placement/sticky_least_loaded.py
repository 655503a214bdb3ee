"""Fewest resident trajectories per slot, then stay: the strongest open baseline.

Residents include trajectories whose tools run: they come back, and with them their share of the work. A
count of running generations alone sends everything to the worker whose trajectories happen to be in tools.
"""

from __future__ import annotations

from collections.abc import Sequence

from heddle.placement.loads import residents_per_slot
from heddle.types import TrajectoryView, WorkerId, WorkerView


class StickyLeastLoaded:
    """The home is chosen once and kept, so that every later step finds its prefix cached."""

    name = "sticky_least_loaded"

    def prepare(self, trajectories: Sequence[TrajectoryView], workers: Sequence[WorkerView]) -> None:
        """Nothing to plan: loads say all."""

    def place(self, trajectory: TrajectoryView, workers: Sequence[WorkerView]) -> WorkerId:
        """Least loaded; ties by fewest placements ever, then by id."""
        return min(workers, key=residents_per_slot).worker_id

    def rehome(self, trajectory: TrajectoryView, workers: Sequence[WorkerView]) -> WorkerId | None:
        """It stays."""
        return None
