"""By rank, the paper's section 5.3: whenever an estimate is renewed, to the worker of the new rank.

The groups that placement made keep their proportions while they shrink: of ``n`` trajectories ``c_i`` were on
worker ``i``, so of the ``m`` that are still open ``c_i * m / n`` are to be. Whoever has rank ``r`` among the
open ones, longest remaining first, belongs to the worker whose share contains ``r``, workers in descending
order of their degrees. No price is asked: a trajectory moves whenever its worker differs. Groups do not
really shrink in proportion, so trajectories move though nothing was mispredicted; ``gated`` asks for the
price.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence

from heddle.control.ports import MigrationProposal
from heddle.migration.options import MigrationOptions
from heddle.types import TrajectoryId, TrajectoryView, WorkerId, WorkerView


class RankMigration:
    """O(log n) comparisons a proposal, and a move of pointers."""

    name = "rank"

    def __init__(self, options: MigrationOptions) -> None:
        self._means = options.means
        self._sizes: dict[WorkerId, int] = {}
        """``c_i``, in descending order of degrees."""
        self._known: dict[TrajectoryId, float] = {}
        self._order: list[float] = []
        """Negated estimates of all open trajectories, ascending."""

    def prepare(self, trajectories: Sequence[TrajectoryView], workers: Sequence[WorkerView]) -> None:
        """Take the groups as they are, and everybody's estimate."""
        ordered = sorted(workers, key=lambda worker: (-worker.tp_degree, worker.worker_id))
        self._sizes = {worker.worker_id: worker.resident for worker in ordered}
        self._known = {
            trajectory.trajectory_id: -(trajectory.predicted_remaining_tokens or 0.0)
            for trajectory in trajectories
        }
        self._order = sorted(self._known.values())

    def propose(
        self, in_tool: Sequence[TrajectoryView], workers: Sequence[WorkerView], now: float
    ) -> Iterable[MigrationProposal]:
        """Each of ``in_tool`` to the worker of its rank, where an estimate of it is known."""
        for trajectory in in_tool:
            remaining = trajectory.predicted_remaining_tokens
            if remaining is None or trajectory.worker_id is None:
                continue
            self._renew(trajectory.trajectory_id, remaining)
            target = self._worker_of(bisect_left(self._order, -remaining))
            if target is not None and target != trajectory.worker_id:
                yield MigrationProposal(
                    trajectory.trajectory_id, trajectory.worker_id, target, self._means, remaining
                )

    def forget(self, trajectory_id: TrajectoryId) -> None:
        """It is open no longer."""
        known = self._known.pop(trajectory_id, None)
        if known is not None:
            del self._order[bisect_left(self._order, known)]

    def _renew(self, trajectory_id: TrajectoryId, remaining: float) -> None:
        self.forget(trajectory_id)
        self._known[trajectory_id] = -remaining
        insort(self._order, -remaining)

    def _worker_of(self, rank: int) -> WorkerId | None:
        placed = sum(self._sizes.values())
        if not placed:
            return None
        end = 0.0
        for worker_id, size in self._sizes.items():
            end += size * len(self._order) / placed
            if rank < end:
                return worker_id
        return next(reversed(self._sizes))
