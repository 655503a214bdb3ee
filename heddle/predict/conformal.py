"""Intervals that keep their promise: conformal calibration on the errors of the latest predictions.

An error is the logarithm of what remained less the estimate that was made then, before the end was known. The
quantiles of the errors of a step's bucket, widened for how few trajectories they come from, make the interval
of the next prediction; a bucket that few have reached uses the errors of all. With fewer than
``FEWEST`` trajectories an interval says nothing, which is the truth.

Errors drift where the policy does, so the level that is asked for is moved by what the intervals really
held (adaptive conformal inference). A run of misses that chance does not explain is taken as another
workload: all but the latest errors are dropped.

Source: Gibbs and Candes, "Adaptive conformal inference under distribution shift" (2021).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import TypeAdapter

from heddle.predict.buckets import COUNT, Floats, Ints
from heddle.types import Json

WINDOW = 384
"""Trajectories whose errors are remembered."""

FEWEST = 19
"""Trajectories from which an interval that holds nine of ten can be told."""

MOST_POINTS = 16
"""Errors kept of one trajectory."""

STEP = 0.02
"""By how much a trajectory that is missed moves the level asked for."""

WIDEST, NARROWEST = 0.02, 0.3
"""Bounds of the share that an interval may be asked to miss."""

MISS = 0.1
"""Share of the true lengths that the outer interval is to miss."""

ALLOWANCE = 0.4
"""Share of misses per trajectory that chance explains; what is above it adds up to an alarm."""

ALARM = 3.5
"""More than the members of one group of four can raise alone."""

KEPT_AT_ALARM = 10
"""Trajectories whose errors survive an alarm: about those that raised it."""


@dataclass(frozen=True, slots=True)
class Errors:
    """Of one finished trajectory: a bucket and an error for each point."""

    buckets: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Calibration:
    """What to add to the logarithm of an estimate, by bucket; infinite where nothing is known."""

    least: Floats
    low: Floats
    median: Floats
    high: Floats
    most: Floats


@dataclass(frozen=True, slots=True)
class _State:
    errors: list[tuple[list[int], list[float]]]
    miss: float
    alarm: float


_STATE: TypeAdapter[_State] = TypeAdapter(_State)


class Calibrator:
    """The errors of one workload."""

    def __init__(self) -> None:
        self._errors: deque[Errors] = deque(maxlen=WINDOW)
        self._miss = MISS
        self._alarm = 0.0
        self._calibration: Calibration | None = None

    @property
    def trajectories(self) -> int:
        """Whose errors are remembered."""
        return len(self._errors)

    def calibration(self) -> Calibration:
        """Offsets for every bucket, computed once after each change."""
        if self._calibration is None:
            self._calibration = self._compute()
        return self._calibration

    def add(self, buckets: Ints, errors: Floats) -> bool:
        """Errors of a finished trajectory. True where its misses are too many to be chance."""
        known = self.calibration()
        missed = float(np.mean((errors < known.least[buckets]) | (errors > known.most[buckets])))
        if len(errors) > MOST_POINTS:
            chosen = np.linspace(0, len(errors) - 1, MOST_POINTS).astype(np.intp)
            buckets, errors = buckets[chosen], errors[chosen]
        self._errors.append(Errors(tuple(buckets.tolist()), tuple(errors.tolist())))
        self._calibration = None
        self._miss = min(NARROWEST, max(WIDEST, self._miss + STEP * (MISS - missed)))
        self._alarm = max(0.0, self._alarm + missed - ALLOWANCE)
        if self._alarm < ALARM:
            return False
        self._alarm, self._miss = 0.0, MISS
        while len(self._errors) > KEPT_AT_ALARM:
            self._errors.popleft()
        return True

    def save(self) -> Json:
        """Errors by trajectory, and the two running numbers."""
        errors: list[Json] = [[list(e.buckets), list(e.values)] for e in self._errors]
        return {"errors": errors, "miss": self._miss, "alarm": self._alarm}

    def restore(self, state: Json) -> None:
        """Raises ``pydantic.ValidationError``."""
        saved = _STATE.validate_python(state)
        self._errors.clear()
        self._errors.extend(Errors(tuple(b), tuple(v)) for b, v in saved.errors)
        self._miss, self._alarm = saved.miss, saved.alarm
        self._calibration = None

    def _compute(self) -> Calibration:
        sizes = [len(e.buckets) for e in self._errors]
        owners = np.repeat(np.arange(len(sizes)), sizes)
        buckets = np.array([b for e in self._errors for b in e.buckets], dtype=np.intp)
        values = np.array([v for e in self._errors for v in e.values])
        levels = (self._miss / 2, 0.1, 0.5, 0.9, 1.0 - self._miss / 2)
        everything = _quantiles(values, len(sizes), levels)
        table = np.empty((len(levels), COUNT))
        for bucket in range(COUNT):
            chosen = buckets == bucket
            trajectories = len(np.unique(owners[chosen]))
            enough = trajectories >= FEWEST
            table[:, bucket] = _quantiles(values[chosen], trajectories, levels) if enough else everything
        return Calibration(*table)


def _quantiles(values: Floats, trajectories: int, levels: Sequence[float]) -> list[float]:
    """Of ``values``, each moved outwards for how few trajectories they come from; the median is not."""
    if not trajectories:
        return [-math.inf, -math.inf, 0.0, math.inf, math.inf]
    ordered = np.sort(values)
    return [_quantile(ordered, trajectories, level) for level in levels]


def _quantile(ordered: Floats, trajectories: int, level: float) -> float:
    last = len(ordered) - 1
    if level == 0.5:
        return float(0.5 * (ordered[last // 2] + ordered[(last + 1) // 2]))
    widened = level * (trajectories + 1) / trajectories - (level < 0.5) / trajectories
    if not 0.0 <= widened <= 1.0:
        return math.inf if level > 0.5 else -math.inf
    position = widened * last
    return float(ordered[math.ceil(position) if level > 0.5 else math.floor(position)])
