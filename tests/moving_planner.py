"""Migration planners for tests, which look at nothing but the moment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pytest

from heddle.control.ports import MigrationProposal, MoveMeans
from heddle.migration import MIGRATION_PLANNERS
from heddle.types import TrajectoryId, TrajectoryView, WorkerView


class Spontaneous:
    """What planners share that keep nothing in mind."""

    def prepare(self, trajectories: Sequence[TrajectoryView], workers: Sequence[WorkerView]) -> None:
        """Plans nothing."""

    def forget(self, trajectory_id: TrajectoryId) -> None:
        """Remembers nothing."""


@dataclass(frozen=True)
class Nomad(Spontaneous):
    """Nobody stays where it is: every tool call is an occasion to move on to the next worker."""

    means: MoveMeans = MoveMeans.TRANSFER
    name: str = "nomad"

    def propose(
        self, in_tool: Sequence[TrajectoryView], workers: Sequence[WorkerView], now: float
    ) -> Iterable[MigrationProposal]:
        """To the next of the ready workers, in order of their ids."""
        names = [worker.worker_id for worker in workers]
        for trajectory in in_tool:
            home = trajectory.worker_id
            if home in names and len(names) > 1:
                target = names[(names.index(home) + 1) % len(names)]
                yield MigrationProposal(trajectory.trajectory_id, home, target, self.means)


def offer_nomad(monkeypatch: pytest.MonkeyPatch, means: MoveMeans = MoveMeans.TRANSFER) -> None:
    """Make ``decisions.migration = "nomad"`` possible for one test."""
    monkeypatch.setitem(cast(dict[str, Any], MIGRATION_PLANNERS), "nomad", lambda *_: Nomad(means))
