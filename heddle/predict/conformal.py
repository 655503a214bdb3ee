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
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import TypeAdapter

from heddle.predict.buckets import COUNT, Floats, Ints
from heddle.types import JsonWritable

WINDOW = 384
"""Trajectories whose errors are remembered."""

FEWEST = 19
"""Trajectories from which an interval that holds nine of ten can be told."""

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

    def by_bucket(self) -> dict[int, list[float]]:
        """The errors of each bucket."""
        found: dict[int, list[float]] = {}
        for bucket, value in zip(self.buckets, self.values, strict=True):
            found.setdefault(bucket, []).append(value)
        return found


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
        self._errors: deque[Errors] = deque()
        self._everything = _Window()
        self._windows = [_Window() for _ in range(COUNT)]
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

    def add(self, buckets: Ints, errors: Floats, known: Calibration) -> bool:
        """Errors of a finished trajectory, judged by the calibration that was known before it.

        True where its misses are too many to be chance.
        """
        missed = float(np.mean((errors < known.least[buckets]) | (errors > known.most[buckets])))
        self._keep(Errors(tuple(buckets.tolist()), tuple(errors.tolist())))
        self._calibration = None
        self._miss = min(NARROWEST, max(WIDEST, self._miss + STEP * (MISS - missed)))
        self._alarm = max(0.0, self._alarm + missed - ALLOWANCE)
        if self._alarm < ALARM:
            return False
        self._alarm, self._miss = 0.0, MISS
        while len(self._errors) > KEPT_AT_ALARM:
            self._drop_oldest()
        return True

    def save(self) -> JsonWritable:
        """Errors by trajectory, and the two running numbers."""
        errors = [(e.buckets, e.values) for e in self._errors]
        return {"errors": errors, "miss": self._miss, "alarm": self._alarm}

    def restore(self, state: JsonWritable) -> None:
        """For a fresh calibrator. Raises ``pydantic.ValidationError``."""
        saved = _STATE.validate_python(state)
        for buckets, values in saved.errors:
            self._keep(Errors(tuple(buckets), tuple(values)))
        self._miss, self._alarm = saved.miss, saved.alarm
        self._calibration = None

    def _keep(self, errors: Errors) -> None:
        if len(self._errors) == WINDOW:
            self._drop_oldest()
        self._errors.append(errors)
        self._everything.add(errors.values)
        for bucket, values in errors.by_bucket().items():
            self._windows[bucket].add(values)

    def _drop_oldest(self) -> None:
        errors = self._errors.popleft()
        self._everything.drop(errors.values)
        for bucket, values in errors.by_bucket().items():
            self._windows[bucket].drop(values)

    def _compute(self) -> Calibration:
        levels = (self._miss / 2, 0.1, 0.5, 0.9, 1.0 - self._miss / 2)
        everything = self._everything.quantiles(levels)
        rows = [w.quantiles(levels) if w.trajectories >= FEWEST else everything for w in self._windows]
        least, low, _, high, most = np.array(rows).T
        # One median for all: those of single buckets are noisy, and would disorder what is well ranked.
        return Calibration(least, low, np.clip(everything[2], low, high), high, most)


class _Window:
    """Errors in order of size, and how many trajectories they come from."""

    def __init__(self) -> None:
        self._ordered: list[float] = []
        self.trajectories = 0

    def add(self, values: Sequence[float]) -> None:
        """Those of one trajectory."""
        self.trajectories += 1
        for value in values:
            insort(self._ordered, value)

    def drop(self, values: Sequence[float]) -> None:
        """The same, once added."""
        self.trajectories -= 1
        for value in values:
            del self._ordered[bisect_left(self._ordered, value)]

    def quantiles(self, levels: Sequence[float]) -> list[float]:
        """Each moved outwards for how few trajectories the errors come from; the median is not."""
        if not self.trajectories:
            return [-math.inf, -math.inf, 0.0, math.inf, math.inf]
        return [self._quantile(level) for level in levels]

    def _quantile(self, level: float) -> float:
        ordered, last = self._ordered, len(self._ordered) - 1
        if level == 0.5:
            return 0.5 * (ordered[last // 2] + ordered[(last + 1) // 2])
        count = self.trajectories
        widened = level * (count + 1) / count - (level < 0.5) / count
        if not 0.0 <= widened <= 1.0:
            return math.inf if level > 0.5 else -math.inf
        position = widened * last
        return ordered[math.ceil(position) if level > 0.5 else math.floor(position)]
