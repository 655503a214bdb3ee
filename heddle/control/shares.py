"""The queue of one worker: batches take turns by their weights, within a batch the highest rank goes first.

Ranks of different batches are never compared. Each grant moves its batch on by the inverse of its weight,
and whichever batch is furthest behind is next (stride scheduling): a batch of weight 2 gets two grants for
each one of a batch of weight 1, and none is ever starved. A batch that waits for nothing saves up nothing.

A deadline makes a batch heavier as it comes nearer: by ``deadline_s / time left``, at most
``MOST_URGENT``-fold.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from heddle.control.queue import WaitingQueue
from heddle.types import BatchId, TrajectoryId

MOST_URGENT = 16.0
"""A late batch gets this many times its share; more would stop all others for work that is late anyway."""


@dataclass(frozen=True, slots=True)
class Share:
    """What a batch may claim."""

    weight: float = 1.0
    deadline_s: float | None = None
    """From its submission."""
    submitted_at: float = 0.0

    def stride(self, now: float) -> float:
        """By how much one grant moves it on."""
        return 1.0 / (self.weight * self._urgency(now))

    def _urgency(self, now: float) -> float:
        if self.deadline_s is None:
            return 1.0
        left = self.deadline_s - (now - self.submitted_at)
        if left * MOST_URGENT <= self.deadline_s:
            return MOST_URGENT
        return max(1.0, self.deadline_s / left)


class Waiting(NamedTuple):
    """A trajectory in the queue."""

    trajectory_id: TrajectoryId
    batch_id: BatchId
    rank: float


class SharedQueue:
    """Waiting trajectories of all batches in order of service. An empty queue gives an ``IndexError``."""

    __slots__ = ("_lines", "_passes", "_size", "_virtual")

    def __init__(self) -> None:
        self._lines: dict[BatchId, WaitingQueue] = {}
        """Never empty ones."""
        self._passes: dict[BatchId, float] = {}
        """How far each batch has come; kept while the batch is open."""
        self._virtual = 0.0
        """How far the batch had come that was served last."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __contains__(self, trajectory_id: TrajectoryId) -> bool:
        return any(trajectory_id in line for line in self._lines.values())

    def push(self, trajectory_id: TrajectoryId, batch_id: BatchId, rank: float, arrival: int) -> None:
        """Let it wait; it must not wait here already."""
        line = self._lines.get(batch_id)
        if line is None:
            line = self._lines[batch_id] = WaitingQueue()
            self._passes[batch_id] = max(self._passes.get(batch_id, 0.0), self._virtual)
        line.push(trajectory_id, rank, arrival)
        self._size += 1

    def peek(self) -> Waiting:
        """Who is next."""
        batch_id = self._next_batch()
        trajectory_id, rank = self._lines[batch_id].peek()
        return Waiting(trajectory_id, batch_id, rank)

    def pop(self, share: Share, now: float) -> Waiting:
        """Take out the next one, whose batch claims ``share``."""
        batch_id = self._next_batch()
        trajectory_id, rank = self._lines[batch_id].pop()
        self._virtual = self._passes[batch_id]
        self._passes[batch_id] += share.stride(now)
        self._left(batch_id)
        return Waiting(trajectory_id, batch_id, rank)

    def remove(self, trajectory_id: TrajectoryId, batch_id: BatchId) -> None:
        """Take out this one, which must wait here."""
        self._lines[batch_id].remove(trajectory_id)
        self._left(batch_id)

    def forget(self, batch_id: BatchId) -> None:
        """The batch is over."""
        self._passes.pop(batch_id, None)

    def ids(self) -> tuple[TrajectoryId, ...]:
        """Everything that waits, batch by batch, in the order in which it was pushed."""
        return tuple(name for line in self._lines.values() for name in line.ids())

    def first(self, limit: int) -> tuple[TrajectoryId, ...]:
        """The next ``limit`` in order of service, as if all weights were 1 and nothing came in between."""
        names: list[TrajectoryId] = []
        for name, _ in zip(self._in_order(limit), range(limit), strict=False):
            names.append(name)
        return tuple(names)

    def position(self, trajectory_id: TrajectoryId, batch_id: BatchId) -> tuple[int, TrajectoryId | None]:
        """How many of its batch go before it (O(n)), and the last of those."""
        return self._lines[batch_id].position(trajectory_id)

    def others(self, batch_id: BatchId) -> int:
        """How many of other batches wait here."""
        return self._size - len(self._lines[batch_id])

    def _next_batch(self) -> BatchId:
        if len(self._lines) == 1:
            return next(iter(self._lines))
        if not self._lines:
            raise IndexError("nobody waits")
        return min(self._lines, key=lambda batch_id: self._passes[batch_id])

    def _left(self, batch_id: BatchId) -> None:
        self._size -= 1
        if not self._lines[batch_id]:
            del self._lines[batch_id]

    def _in_order(self, limit: int) -> Iterator[TrajectoryId]:
        lines = {batch_id: iter(line.first(limit)) for batch_id, line in self._lines.items()}
        passes = {batch_id: self._passes[batch_id] for batch_id in lines}
        while lines:
            batch_id = min(lines, key=lambda name: passes[name])
            passes[batch_id] += 1.0
            name = next(lines[batch_id], None)
            if name is None:
                del lines[batch_id]
            else:
                yield name
