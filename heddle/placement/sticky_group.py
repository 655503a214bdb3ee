"""Groups stay together as far as loads stay even: their common prompt is computed, and held, once.

Members of a group begin with the same prompt. Spread over all workers each of them computes it and keeps it
in its memory; together on one worker it is there once. Lengths within a group are alike, so that whoever
keeps groups together spreads the work less evenly than the trajectories: which of the two counts for more
depends on prompts and memory, and a rehearsal tells.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from heddle.placement.loads import residents_per_slot
from heddle.types import GroupId, TrajectoryView, WorkerId, WorkerView


class StickyGroup:
    """Where the last of the group went, while that worker has less than its share of all that is open."""

    name = "sticky_group"

    def __init__(self) -> None:
        self._last: dict[GroupId, WorkerId] = {}
        """Where a group's newest member has its home."""
        self._per_slot = 0.0
        """Trajectories for each slot of the pool."""

    def prepare(self, trajectories: Sequence[TrajectoryView], workers: Sequence[WorkerView]) -> None:
        """Count what is open, and forget the groups that are not."""
        homes = ((trajectory.group_id, trajectory.worker_id) for trajectory in trajectories)
        self._last = {group_id: home for group_id, home in homes if home is not None}
        slots = sum(worker.slots for worker in workers)
        self._per_slot = len(trajectories) / slots if slots else 0.0

    def place(self, trajectory: TrajectoryView, workers: Sequence[WorkerView]) -> WorkerId:
        """With its group, else least loaded."""
        last = self._last.get(trajectory.group_id)
        beside = next((worker for worker in workers if worker.worker_id == last), None)
        if beside is None or not self._has_room(beside):
            beside = min(workers, key=residents_per_slot)
        self._last[trajectory.group_id] = beside.worker_id
        return beside.worker_id

    def rehome(self, trajectory: TrajectoryView, workers: Sequence[WorkerView]) -> WorkerId | None:
        """It stays."""
        return None

    def _has_room(self, worker: WorkerView) -> bool:
        return worker.resident < math.ceil(self._per_slot * worker.slots)
