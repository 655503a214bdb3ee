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
        self._offsets: Floats | None = None

    @property
    def trajectories(self) -> int:
        """Whose errors are remembered."""
        return len(self._errors)

    def offsets(self) -> Floats:
        """What to add to the logarithm of an estimate for its quantiles 0.05, 0.1, 0.5, 0.9 and 0.95, by
        bucket: shape (quantiles, buckets), infinite where nothing is known. Computed once after each change.
        """
        if self._offsets is None:
            self._offsets = self._compute()
        return self._offsets

    def add(self, buckets: Ints, errors: Floats, known: Floats) -> bool:
        """Errors of a finished trajectory, judged by the offsets that were known before it.

        True where its misses are too many to be chance.
        """
        outside = (errors < known[0, buckets]) | (errors > known[-1, buckets])
        missed = float(np.count_nonzero(outside) / len(errors))
        self._keep(Errors(tuple(buckets.tolist()), tuple(errors.tolist())))
        self._offsets = None
        self._miss = min(NARROWEST, max(WIDEST, self._miss + STEP * (MISS - missed)))
        self._alarm = max(0.0, self._alarm + missed - ALLOWANCE)
        if self._alarm < ALARM:
            return False
        self.drop_all_but(KEPT_AT_ALARM)
        return True

    def drop_all_but(self, newest: int) -> None:
        """It is another workload since so many trajectories."""
        self._alarm, self._miss, self._offsets = 0.0, MISS, None
        while len(self._errors) > newest:
            self._drop_oldest()

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
        self._offsets = None

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

    def _compute(self) -> Floats:
        miss = self._miss / 2
        everything = self._everything.quantiles(miss)
        # One median for all: those of single buckets are noisy, and would disorder what is well ranked.
        middle = everything[2]
        rows = []
        for window in self._windows:
            told = window.quantiles(miss) if window.trajectories >= FEWEST else everything
            least, low, _, high, most = told
            rows.append((least, low, min(max(middle, low), high), high, most))
        return np.array(rows).T.copy()


class _Window:
    """Errors in order of size, and how many trajectories they come from."""

    def __init__(self) -> None:
        self._ordered: list[float] = []
        self._inner: tuple[float, float, float] | None = None
        self.trajectories = 0

    def add(self, values: Sequence[float]) -> None:
        """Those of one trajectory."""
        self.trajectories += 1
        self._inner = None
        for value in values:
            insort(self._ordered, value)

    def drop(self, values: Sequence[float]) -> None:
        """The same, once added."""
        self.trajectories -= 1
        self._inner = None
        for value in values:
            del self._ordered[bisect_left(self._ordered, value)]

    def quantiles(self, miss: float) -> tuple[float, float, float, float, float]:
        """``miss``, 0.1, 0.5, 0.9 and 1 - ``miss``.

        Each is moved outwards for how few trajectories the errors come from; the median is not.
        """
        if not self.trajectories:
            return -math.inf, -math.inf, 0.0, math.inf, math.inf
        if self._inner is None:
            ordered, last = self._ordered, len(self._ordered) - 1
            median = 0.5 * (ordered[last // 2] + ordered[(last + 1) // 2])
            self._inner = self._quantile(0.1), median, self._quantile(0.9)
        return self._quantile(miss), *self._inner, self._quantile(1.0 - miss)

    def _quantile(self, level: float) -> float:
        ordered, last = self._ordered, len(self._ordered) - 1
        count = self.trajectories
        widened = level * (count + 1) / count - (level < 0.5) / count
        if not 0.0 <= widened <= 1.0:
            return math.inf if level > 0.5 else -math.inf
        position = widened * last
        return ordered[math.ceil(position) if level > 0.5 else math.floor(position)]
