"""The queue of one batch at one worker: push, pop, remove in O(log n), and nothing else that changes it.

Larger priority first, then smaller arrival. A priority is fixed while its trajectory waits; a removed entry
stays in the heap until it surfaces or until such entries outnumber the live ones.
"""

from __future__ import annotations

import heapq
from typing import TypeAlias

from heddle.types import TrajectoryId

_Entry: TypeAlias = tuple[float, int, TrajectoryId]
"""Negated priority, arrival, id: the heap's order is the order of service."""

COMPACT_ABOVE = 64
"""Heap length below which dead entries are not worth sweeping out."""


class WaitingQueue:
    """Waiting trajectories in order of service. ``pop`` on an empty queue is an ``IndexError``."""

    __slots__ = ("_heap", "_live")

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._live: dict[TrajectoryId, _Entry] = {}

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, trajectory_id: TrajectoryId) -> bool:
        return trajectory_id in self._live

    def __repr__(self) -> str:
        return f"<WaitingQueue {', '.join(self.first(8))}{' ...' if len(self) > 8 else ''}>"

    def push(self, trajectory_id: TrajectoryId, priority: float, arrival: int) -> None:
        """Let it wait; it must not wait here already."""
        entry = (-priority, arrival, trajectory_id)
        self._live[trajectory_id] = entry
        heapq.heappush(self._heap, entry)

    def peek(self) -> tuple[TrajectoryId, float]:
        """Id and priority of the next one, which goes on waiting."""
        while True:
            entry = self._heap[0]
            # By identity: a trajectory that left and came back has an equal but newer entry.
            if self._live.get(entry[2]) is entry:
                return entry[2], -entry[0]
            heapq.heappop(self._heap)

    def pop(self) -> tuple[TrajectoryId, float]:
        """Take out the next one; returns its id and priority."""
        trajectory_id, priority = self.peek()
        heapq.heappop(self._heap)
        del self._live[trajectory_id]
        return trajectory_id, priority

    def remove(self, trajectory_id: TrajectoryId) -> None:
        """Take out this one, which must wait here."""
        del self._live[trajectory_id]
        if len(self._heap) > COMPACT_ABOVE and len(self._heap) > 2 * len(self._live):
            self._heap = list(self._live.values())
            heapq.heapify(self._heap)

    @property
    def heap_length(self) -> int:
        """Entries in memory, dead ones included; bounded by what waits."""
        return len(self._heap)

    def ids(self) -> tuple[TrajectoryId, ...]:
        """Everything that waits, in the order in which it was pushed."""
        return tuple(self._live)

    def first(self, limit: int) -> tuple[TrajectoryId, ...]:
        """The next ``limit`` in order of service."""
        return tuple(entry[2] for entry in heapq.nsmallest(limit, self._live.values()))

    def position(self, trajectory_id: TrajectoryId) -> tuple[int, TrajectoryId | None]:
        """How many go before it (O(n)), and the last of those."""
        own = self._live[trajectory_id]
        ahead = [entry for entry in self._live.values() if entry < own]
        return len(ahead), max(ahead)[2] if ahead else None
