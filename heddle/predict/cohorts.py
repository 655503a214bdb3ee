"""Endings in the order of their beginnings.

Trajectories that run side by side end in the order of their lengths: who learns from each as it ends has seen
the short ones only until the last moment of the batch, and takes every long one for a surprise. So an ending
is learned together with those that began next to it, when all of them have ended, and cohort after cohort.
One that outlasts later cohorts as a whole is no longer waited for.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, TypeVar

from heddle.types import TrajectoryId

T = TypeVar("T")

SMALLEST, LARGEST = 4, 64
"""Trajectories in a cohort: as many as run when it begins, between these bounds."""

PATIENCE = 2
"""Later cohorts that are complete; then the oldest is learned without those of it that still run. They are
learned when they end."""


@dataclass(slots=True)
class _Cohort(Generic[T]):
    size: int
    members: list[TrajectoryId] = field(default_factory=list)
    open: set[TrajectoryId] = field(default_factory=set)
    ended: dict[TrajectoryId, T] = field(default_factory=dict)

    @property
    def full(self) -> bool:
        return len(self.members) >= self.size

    @property
    def complete(self) -> bool:
        return self.full and not self.open


class Cohorts(Generic[T]):
    """Keeps what is to be learned of each ending until it is its turn."""

    def __init__(self) -> None:
        self._cohorts: deque[_Cohort[T]] = deque()
        self._cohort_of: dict[TrajectoryId, _Cohort[T] | None] = {}
        """Of those that run; ``None`` where the others of the cohort were learned already."""

    @property
    def open_trajectories(self) -> int:
        """Begun and neither ended nor forgotten."""
        return len(self._cohort_of)

    def begin(self, trajectory_id: TrajectoryId) -> None:
        """It runs. Again for the same one is a no-op."""
        if trajectory_id in self._cohort_of:
            return
        if not self._cohorts or self._cohorts[-1].full:
            self._cohorts.append(_Cohort(min(LARGEST, max(SMALLEST, len(self._cohort_of)))))
        cohort = self._cohorts[-1]
        cohort.members.append(trajectory_id)
        cohort.open.add(trajectory_id)
        self._cohort_of[trajectory_id] = cohort

    def end(self, trajectory_id: TrajectoryId, ending: T) -> list[T]:
        """It ended by itself; returns the endings whose turn has come, in the order of their beginnings."""
        cohort = self._cohort_of.pop(trajectory_id, None)
        if cohort is None:
            return [ending]
        cohort.open.discard(trajectory_id)
        cohort.ended[trajectory_id] = ending
        return self._released()

    def forget(self, trajectory_id: TrajectoryId) -> list[T]:
        """Nothing is learned of it; returns the endings that waited for it."""
        cohort = self._cohort_of.pop(trajectory_id, None)
        if cohort is not None:
            cohort.open.discard(trajectory_id)
        return self._released()

    def _released(self) -> list[T]:
        released: list[T] = []
        while self._cohorts and (not self._cohorts[0].open or self._overtaken()):
            cohort = self._cohorts.popleft()
            self._cohort_of.update(dict.fromkeys(cohort.open))
            released += [cohort.ended[name] for name in cohort.members if name in cohort.ended]
        return released

    def _overtaken(self) -> bool:
        later = islice(self._cohorts, 1, None)
        return sum(cohort.complete for cohort in later) >= PATIENCE
