"""No migration: a trajectory stays where it was placed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from heddle.control.ports import MigrationProposal
from heddle.types import TrajectoryId, TrajectoryView, WorkerView


class NoMigration:
    """Proposes nothing."""

    name = "none"

    def prepare(self, trajectories: Sequence[TrajectoryView], workers: Sequence[WorkerView]) -> None:
        """Nothing to plan."""

    def propose(
        self, in_tool: Sequence[TrajectoryView], workers: Sequence[WorkerView], now: float
    ) -> Iterable[MigrationProposal]:
        """Never a proposal."""
        return ()

    def forget(self, trajectory_id: TrajectoryId) -> None:
        """Nothing is remembered."""
