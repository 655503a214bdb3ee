"""Least loaded, then stay unless another worker has fewer by a margin: affinity with an escape.

The margin is in residents per slot beyond what moving the trajectory itself would change, so that two workers
never hand one back and forth.
"""

from __future__ import annotations

from collections.abc import Sequence

from heddle.placement.loads import residents_per_slot
from heddle.types import TrajectoryView, WorkerId, WorkerView

MARGIN = 2.0
"""Trajectories by which the home must exceed the other, after the move."""


class StickyMargin:
    """A home is left where that evens out more than it costs."""

    name = "sticky_margin"

    def prepare(self, trajectories: Sequence[TrajectoryView], workers: Sequence[WorkerView]) -> None:
        """Nothing to plan: loads say all."""

    def place(self, trajectory: TrajectoryView, workers: Sequence[WorkerView]) -> WorkerId:
        """Least loaded; ties by fewest placements ever, then by id."""
        return min(workers, key=residents_per_slot).worker_id

    def rehome(self, trajectory: TrajectoryView, workers: Sequence[WorkerView]) -> WorkerId | None:
        """To the least loaded if the home, once left, still has more per slot than that would have by the
        margin."""
        home = next((worker for worker in workers if worker.worker_id == trajectory.worker_id), None)
        least = min(workers, key=residents_per_slot)
        if home is None or home.worker_id == least.worker_id:
            return None
        left, joined = (home.resident - 1) / home.slots, (least.resident + 1) / least.slots
        return least.worker_id if left - joined >= MARGIN / home.slots else None
