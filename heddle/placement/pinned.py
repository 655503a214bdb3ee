"""Bound to one worker by its id, whatever happens there: verl's affinity of requests.

Even only as far as hashes are: sixteen workers with a hundred trajectories each differ by a third. A router
that chooses the least loaded worker for the first step and binds then is ``sticky_least_loaded``.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from heddle.types import TrajectoryId, TrajectoryView, WorkerId, WorkerView


class Pinned:
    """The id alone chooses among the ready workers, so that every step of it lands on the same one."""

    name = "pinned"

    def prepare(self, trajectories: Sequence[TrajectoryView], workers: Sequence[WorkerView]) -> None:
        """Nothing to plan."""

    def place(self, trajectory: TrajectoryView, workers: Sequence[WorkerView]) -> WorkerId:
        """By the hash of the id; loads do not matter."""
        return by_affinity(trajectory.trajectory_id, workers)

    def rehome(self, trajectory: TrajectoryView, workers: Sequence[WorkerView]) -> WorkerId | None:
        """It stays."""
        return None


def by_affinity(trajectory_id: TrajectoryId, workers: Sequence[WorkerView]) -> WorkerId:
    """The same for the same id and the same workers, in every process."""
    digest = blake2b(trajectory_id.encode(), digest_size=8).digest()
    return workers[int.from_bytes(digest) % len(workers)].worker_id
