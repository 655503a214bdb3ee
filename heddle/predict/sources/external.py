"""``features``, ``text``, ``qwen``: models outside of the control plane, which see more than counts.

They run in a process of their own and their estimates arrive as ``LengthPredicted``: perhaps one step late,
perhaps never. What was generated since an estimate is taken off it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from heddle.predict.buckets import Floats
from heddle.predict.point import Point
from heddle.predict.sources import Context, SilentSource
from heddle.types import Prediction, TrajectoryId


class ExternalModel(SilentSource):
    """One column: the newest estimate of the model of this name."""

    absolute = True

    def __init__(self, name: str, weight: float) -> None:
        self.name = name
        self.prior = (weight,)
        self._totals: dict[TrajectoryId, float] = {}
        """Estimated tokens of the whole trajectory."""

    def fill(self, points: Sequence[Point], context: Context, rows: Floats) -> None:
        if not self._totals:
            return
        for index, point in enumerate(points):
            total = self._totals.get(point.trajectory_id)
            if total is not None:
                rows[index, 0] = math.log1p(max(total - point.generated_tokens, 1.0))

    def observe_estimate(self, point: Point, estimate: Prediction) -> None:
        if estimate.model == self.name:
            self._totals[point.trajectory_id] = point.generated_tokens + estimate.remaining_tokens

    def observe_ended(self, point: Point, surprise: float) -> None:
        self._totals.pop(point.trajectory_id, None)

    def forget(self, trajectory_id: TrajectoryId) -> None:
        self._totals.pop(trajectory_id, None)
