"""No migration: a trajectory stays where it was placed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from heddle.control.ports import MigrationProposal
from heddle.types import TrajectoryView, WorkerView


class NoMigration:
    """Proposes nothing."""

    name = "none"

    def propose(
        self, in_tool: Sequence[TrajectoryView], workers: Sequence[WorkerView], now: float
    ) -> Iterable[MigrationProposal]:
        """Never a proposal."""
        return ()
