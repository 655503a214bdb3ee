"""Trajectories that the memory guard holds back at one worker: who has waited longest, and who fits best."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import TypeAlias

from heddle.types import TrajectoryId

_Sized: TypeAlias = tuple[int, int, TrajectoryId]
"""Context tokens, arrival, id."""


class ParkingLot:
    """Every operation is O(log n) comparisons, and a move of pointers."""

    __slots__ = ("_by_age", "_by_size")

    def __init__(self) -> None:
        self._by_age: dict[TrajectoryId, _Sized] = {}
        self._by_size: list[_Sized] = []

    def __len__(self) -> int:
        return len(self._by_age)

    def __contains__(self, trajectory_id: TrajectoryId) -> bool:
        return trajectory_id in self._by_age

    def push(self, trajectory_id: TrajectoryId, context_tokens: int, arrival: int) -> None:
        """Hold it back; it must not be here already."""
        entry = (context_tokens, arrival, trajectory_id)
        self._by_age[trajectory_id] = entry
        insort(self._by_size, entry)

    def remove(self, trajectory_id: TrajectoryId) -> None:
        """Let it go; it must be here."""
        entry = self._by_age.pop(trajectory_id)
        del self._by_size[bisect_left(self._by_size, entry)]

    def oldest(self) -> TrajectoryId:
        """Who came here first."""
        return next(iter(self._by_age))

    def best_fit(self, room_tokens: float) -> TrajectoryId | None:
        """The largest whose context is within ``room_tokens``, of equals the latest arrival."""
        index = bisect_right(self._by_size, room_tokens, key=lambda entry: entry[0])
        return self._by_size[index - 1][2] if index else None

    def ids(self) -> tuple[TrajectoryId, ...]:
        """All, in the order in which they came."""
        return tuple(self._by_age)
