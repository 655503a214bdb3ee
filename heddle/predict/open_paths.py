"""What was estimated for each open trajectory, kept until it ends and it is known what was right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from heddle.predict.buckets import Floats, Ints
from heddle.predict.point import Point
from heddle.types import Prediction, TrajectoryId

MOST_POINTS = 32
"""Kept of one trajectory; every other one goes where there are more."""


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


class OpenPaths:
    """The remembered points of every open trajectory, oldest first."""

    def __init__(self) -> None:
        self._paths: dict[TrajectoryId, list[Estimated]] = {}

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
                paths[estimated.point.trajectory_id] = [estimated]
            elif path[-1].point.steps_done == estimated.point.steps_done:
                path[-1] = estimated
            else:
                if len(path) >= MOST_POINTS:
                    del path[1:-1:2]
                path.append(estimated)

    def at(self, trajectory_id: TrajectoryId, steps_done: int) -> Point | None:
        """How the trajectory stood after so many steps, if that is remembered."""
        path = self._paths.get(trajectory_id, ())
        return next((e.point for e in reversed(path) if e.point.steps_done == steps_done), None)

    def latest(self, trajectory_id: TrajectoryId) -> Point | None:
        """How it stood when it was estimated last."""
        path = self._paths.get(trajectory_id)
        return path[-1].point if path else None

    def pop(self, trajectory_id: TrajectoryId) -> Sequence[Estimated]:
        """The points of a trajectory that has ended."""
        return self._paths.pop(trajectory_id, ())
