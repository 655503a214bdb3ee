"""Bound by id until loads drift apart: verl behind a cache-aware router, the paper's verl*.

While the most loaded worker has at most ``IMBALANCE`` times the requests of the least loaded one, a step goes
where its id is bound to. Beyond that it goes to the least loaded worker, and its prefix is computed anew.
"""

from __future__ import annotations

from collections.abc import Sequence

from heddle.placement.loads import requests
from heddle.placement.pinned import by_affinity
from heddle.types import TrajectoryView, WorkerId, WorkerView

IMBALANCE = 32.0
"""Largest over smallest number of requests; an idle worker counts as one with a single request."""


class PinnedRebalance:
    """Affinity first, balance only where it is badly broken."""

    name = "pinned_rebalance"

    def prepare(self, trajectories: Sequence[TrajectoryView], workers: Sequence[WorkerView]) -> None:
        """Nothing to plan."""

    def place(self, trajectory: TrajectoryView, workers: Sequence[WorkerView]) -> WorkerId:
        """By id, or the least loaded where loads are out of balance."""
        if _out_of_balance(workers):
            return min(workers, key=requests).worker_id
        return by_affinity(trajectory.trajectory_id, workers)

    def rehome(self, trajectory: TrajectoryView, workers: Sequence[WorkerView]) -> WorkerId | None:
        """To the least loaded where loads are out of balance, and it stays there."""
        if not _out_of_balance(workers):
            return None
        return min(workers, key=requests).worker_id


def _out_of_balance(workers: Sequence[WorkerView]) -> bool:
    loads = [worker.running + worker.waiting for worker in workers]
    return max(loads) > IMBALANCE * max(1, min(loads))
