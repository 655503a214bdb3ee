"""What was estimated for each open trajectory, kept until it ends and it is known what was right.

Of a long trajectory not every point is kept, but which ones must not depend on how long it becomes: or what
is learned of a step would be learned of the short ones alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from heddle.predict.buckets import Floats, Ints, cell_of
from heddle.predict.point import Point
from heddle.types import Prediction, TrajectoryId

RECENT = 8
"""Latest points of a trajectory that are kept for estimates that come late."""

LEAST_LEFT = 0.5
"""Share of what was estimated first that is left at least: who outlives an estimate has not ended by it."""


@dataclass(frozen=True, slots=True)
class Estimates:
    """What is expected at some points; arrays have one entry a point, but where their shape is told."""

    known: bool
    """Whether any ending was seen; the other estimates mean nothing before."""
    buckets: Ints
    rows: Floats
    """The evidence, as the sources told it: shape (points, columns)."""
    quantiles: Floats
    """``LEVELS`` of the logarithm of 1 + the remaining tokens: shape (quantiles, points)."""
    tokens: Floats
    """Mean of the remaining tokens."""
    steps: Floats
    """Remaining steps."""
    tool_seconds: Floats
    """Remaining seconds in tools."""

    def predictions(
        self, points: Sequence[Point], max_tokens: Sequence[int], model: str
    ) -> list[Prediction | None]:
        """In the order of ``points``; no more than is left of ``max_tokens`` each."""
        if not self.known:
            return [None] * len(points)
        left = np.array(
            [max(0, most - p.generated_tokens) for most, p in zip(max_tokens, points, strict=True)]
        )
        tokens = np.expm1(np.minimum(np.maximum(self.quantiles, 0.0), np.log1p(left))).tolist()
        expected = np.minimum(np.maximum(self.tokens, 0.0), left).tolist()
        steps, seconds = self.steps.tolist(), self.tool_seconds.tolist()
        return [
            Prediction(
                median, low, high, point.steps_done, model, least, most, mean, steps_left, seconds_left
            )
            for point, least, low, median, high, most, mean, steps_left, seconds_left in zip(
                points, *tokens, expected, steps, seconds, strict=True
            )
        ]


class Estimated(NamedTuple):
    """One point and what was told of it. A tuple, because a batch makes hundreds at once."""

    point: Point
    bucket: int
    row: Floats
    low: float
    median: float
    """NaN, as the others, where nothing was known."""
    high: float
    tokens: float
    """Mean of the remaining tokens; NaN likewise."""


class OpenPaths:
    """The remembered points of every open trajectory, oldest first: the first of each cell and the latest."""

    def __init__(self) -> None:
        self._paths: dict[TrajectoryId, list[Estimated]] = {}

    def add(self, points: Sequence[Point], estimates: Estimates) -> None:
        """A newer estimate after the same step takes the place of the older."""
        paths = self._paths
        _, low, median, high, _ = estimates.quantiles.tolist()
        tokens = estimates.tokens.tolist() if estimates.known else [math.nan] * len(points)
        told = map(Estimated, points, estimates.buckets.tolist(), estimates.rows, low, median, high, tokens)
        for point, estimated in zip(points, told, strict=True):
            path = paths.get(point.trajectory_id)
            if path is None:
                paths[point.trajectory_id] = [estimated]
            elif path[-1].point.steps_done == point.steps_done:
                path[-1] = estimated
            else:
                path.append(estimated)
                leaving = len(path) - 1 - RECENT
                if leaving > 0 and not _is_first(path, leaving):
                    del path[leaving]

    def first_left(self, points: Sequence[Point]) -> Floats:
        """Mean of the tokens that would remain at each point, had the first estimate been right; NaN where
        nothing was estimated after an earlier step."""
        return np.array([self._first_left(point) for point in points])

    def _first_left(self, point: Point) -> float:
        path = self._paths.get(point.trajectory_id)
        if path is None or path[0].point.steps_done == point.steps_done:
            return math.nan
        whole = path[0].point.generated_tokens + path[0].tokens
        return max(whole - point.generated_tokens, LEAST_LEFT * whole)

    def at(self, trajectory_id: TrajectoryId, steps_done: int) -> Point | None:
        """How the trajectory stood after so many steps, if that is remembered."""
        path = self._paths.get(trajectory_id, ())
        return next((e.point for e in reversed(path) if e.point.steps_done == steps_done), None)

    def latest(self, trajectory_id: TrajectoryId) -> Point | None:
        """How it stood when it was estimated last."""
        path = self._paths.get(trajectory_id)
        return path[-1].point if path else None

    def pop(self, trajectory_id: TrajectoryId) -> Sequence[Estimated]:
        """The points of a trajectory that has ended, oldest first: the first of each cell."""
        path = self._paths.pop(trajectory_id, [])
        return [estimated for index, estimated in enumerate(path) if not index or _is_first(path, index)]


def _is_first(path: Sequence[Estimated], index: int) -> bool:
    """Of its cell. ``index``: not the first of all."""
    return cell_of(path[index].point.steps_done) != cell_of(path[index - 1].point.steps_done)
