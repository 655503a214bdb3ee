"""Fewest running and waiting generations, anew at every step: slime's router.

Loads are even at every moment, and the price is the cache: whoever lands elsewhere computes its context anew.
"""

from __future__ import annotations

from collections.abc import Sequence

from heddle.placement.loads import requests
from heddle.types import TrajectoryView, WorkerId, WorkerView


class LeastLoad:
    """A step goes wherever the fewest requests are; a home lasts one step."""

    name = "least_load"

    def prepare(self, trajectories: Sequence[TrajectoryView], workers: Sequence[WorkerView]) -> None:
        """Nothing to plan: loads say all."""

    def place(self, trajectory: TrajectoryView, workers: Sequence[WorkerView]) -> WorkerId:
        """Fewest requests; ties by fewest placements ever, then by id."""
        return min(workers, key=requests).worker_id

    def rehome(self, trajectory: TrajectoryView, workers: Sequence[WorkerView]) -> WorkerId | None:
        """As if it were new; where its home is among the least loaded it stays, as prefixes break ties."""
        least = min(workers, key=requests)
        loads = {worker.worker_id: worker.running + worker.waiting for worker in workers}
        own = None if trajectory.worker_id is None else loads.get(trajectory.worker_id)
        return None if own == loads[least.worker_id] else least.worker_id
