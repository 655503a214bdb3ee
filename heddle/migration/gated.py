"""Moves that pay: the pair of workers must be done sooner by more than the move costs (``gate``).

Whoever enters its tools is looked at, and moves to the worker where that saves most. Only workers that end
about last are relieved: anywhere else a move changes nothing that anybody waits for. Without trust all count
as equal, and moves even out numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import nsmallest

from heddle.control.ports import MigrationProposal
from heddle.migration.gate import Gate
from heddle.migration.options import MigrationOptions
from heddle.types import TrajectoryId, TrajectoryView, WorkerView

CRITICAL_SHARE = 0.9
"""Of the last worker's time to drain; who ends sooner is left alone."""
TARGETS = 6
"""Those that end soonest are judged as targets."""


class GatedMigration:
    """Proposes at most one move for each trajectory that enters its tools."""

    name = "gated"

    def __init__(self, options: MigrationOptions) -> None:
        """Raises ``ConfigError`` where ``options`` lack a profile."""
        self._gate = Gate(self.name, options)

    def prepare(self, trajectories: Sequence[TrajectoryView], workers: Sequence[WorkerView]) -> None:
        """Forget what was seen of the workers."""
        self._gate.reset(trajectories, workers)

    def propose(
        self, in_tool: Sequence[TrajectoryView], workers: Sequence[WorkerView], now: float
    ) -> Iterable[MigrationProposal]:
        """See the module."""
        if not self._gate.prices(workers):
            return
        self._gate.renew(workers)
        by_id = {worker.worker_id: worker for worker in workers}
        for trajectory in in_tool:
            source = None if trajectory.worker_id is None else by_id.get(trajectory.worker_id)
            if source is None or self._gate.seconds(source) < CRITICAL_SHARE * self._gate.last_s():
                continue
            proposal = self._gate.best(trajectory, source, self._targets(trajectory, source, workers))
            if proposal is not None:
                yield proposal

    def forget(self, trajectory_id: TrajectoryId) -> None:
        """Nothing is remembered of single trajectories."""

    def _targets(
        self, trajectory: TrajectoryView, source: WorkerView, workers: Sequence[WorkerView]
    ) -> Sequence[WorkerView]:
        """Those that end soonest and could take it."""
        possible = [worker for worker in workers if self._gate.admits(trajectory, source, worker)]
        return nsmallest(TARGETS, possible, key=lambda w: (self._gate.seconds(w), w.worker_id))
