"""What was estimated for each open trajectory, kept until it ends and it is known what was right.

Of a long trajectory not every point is kept, but which ones must not depend on how long it becomes: or what
is learned of a step would be learned of the short ones alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from heddle.predict.buckets import Floats, Ints, cell_of
from heddle.predict.point import Point
from heddle.types import Prediction, TrajectoryId

RECENT = 8
"""Latest points of a trajectory that are kept for estimates that come late."""


@dataclass(frozen=True, slots=True)
class Estimates:
    """What is expected at some points; arrays have one entry (``rows``: one row) a point.

    Logarithms are of 1 + tokens; NaN where nothing is known.
    """

    buckets: Ints
    rows: Floats
    """The evidence: shape (points, columns)."""
    expected: Floats
    """Logarithm of the remaining tokens, before calibration."""
    least: Floats
    low: Floats
    median: Floats
    high: Floats
    most: Floats
    steps: Floats
    """Remaining steps."""
    tool_seconds: Floats
    """Remaining seconds in tools."""

    def predictions(
        self, points: Sequence[Point], max_tokens: Sequence[int], model: str
    ) -> list[Prediction | None]:
        """In the order of ``points``; no more than is left of ``max_tokens`` each."""
        if np.isnan(self.expected).any():
            return [None] * len(points)
        left = np.array([most - p.generated_tokens for most, p in zip(max_tokens, points, strict=True)])
        ceiling = np.log1p(np.maximum(left, 0))
        quantiles = np.stack((self.median, self.low, self.high, self.least, self.most))
        tokens = np.expm1(np.clip(quantiles, 0.0, ceiling)).tolist()
        steps, seconds = self.steps.tolist(), self.tool_seconds.tolist()
        return [
            Prediction(median, low, high, point.steps_done, model, least, most, steps_left, seconds_left)
            for point, median, low, high, least, most, steps_left, seconds_left in zip(
                points, *tokens, steps, seconds, strict=True
            )
        ]


class Estimated(NamedTuple):
    """One point and what was expected there. A tuple, because a batch makes hundreds at once."""

    point: Point
    bucket: int
    row: Floats
    expected: float
    median: float
    low: float
    high: float


class _Path:
    """What was estimated for one open trajectory."""

    __slots__ = ("kept", "recent")

    def __init__(self) -> None:
        self.kept: list[Estimated] = []
        """The first of each cell, oldest first."""
        self.recent: deque[Estimated] = deque(maxlen=RECENT)

    def add(self, estimated: Estimated) -> None:
        steps_done, kept, recent = estimated.point.steps_done, self.kept, self.recent
        if recent and recent[-1].point.steps_done == steps_done:
            recent.pop()
        recent.append(estimated)
        if not kept or cell_of(steps_done) != cell_of(kept[-1].point.steps_done):
            kept.append(estimated)
        elif kept[-1].point.steps_done == steps_done:
            kept[-1] = estimated


class OpenPaths:
    """The remembered points of every open trajectory."""

    def __init__(self) -> None:
        self._paths: dict[TrajectoryId, _Path] = {}

    def add(self, points: Sequence[Point], estimates: Estimates) -> None:
        """A newer estimate after the same step takes the place of the older."""
        values = map(
            Estimated,
            points,
            estimates.buckets.tolist(),
            estimates.rows,
            estimates.expected.tolist(),
            estimates.median.tolist(),
            estimates.low.tolist(),
            estimates.high.tolist(),
        )
        paths = self._paths
        for estimated in values:
            path = paths.get(estimated.point.trajectory_id)
            if path is None:
                path = paths[estimated.point.trajectory_id] = _Path()
            path.add(estimated)

    def at(self, trajectory_id: TrajectoryId, steps_done: int) -> Point | None:
        """How the trajectory stood after so many steps, if that is among the latest."""
        path = self._paths.get(trajectory_id)
        recent = () if path is None else path.recent
        return next((e.point for e in reversed(recent) if e.point.steps_done == steps_done), None)

    def latest(self, trajectory_id: TrajectoryId) -> Point | None:
        """How it stood when it was estimated last."""
        path = self._paths.get(trajectory_id)
        return None if path is None else path.recent[-1].point

    def pop(self, trajectory_id: TrajectoryId) -> Sequence[Estimated]:
        """The points of a trajectory that has ended, oldest first: the first of each cell."""
        path = self._paths.pop(trajectory_id, None)
        return () if path is None else path.kept
