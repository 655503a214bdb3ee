"""The pool stays as it was made."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from heddle.control.ports import Reshape
from heddle.types import TrajectoryId, TrajectoryView, WorkerId, WorkerView


class NoReshaping:
    """Proposes nothing."""

    name = "none"

    def propose(self, workers: Sequence[WorkerView], start_s: float) -> Reshape | None:
        """Never another shape."""
        return None

    def assign(
        self, workers: Sequence[WorkerView], fresh: Collection[WorkerId]
    ) -> Mapping[TrajectoryId, WorkerId]:
        """Nothing was started for anybody."""
        return {}

    def observe_finished(self, trajectory: TrajectoryView) -> None:
        """Nothing is learned."""
