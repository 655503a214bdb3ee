"""What the store keeps and gives back: batches as submitted, half-steps, finished trajectories."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from heddle.agent.journal import Journal, JournalEntry
from heddle.store.gates import Gate, GateViolation
from heddle.types import BatchId, TrajectoryId


@dataclass(frozen=True, slots=True)
class BatchState:
    """How a batch stands; small, where its request may be tens of megabytes."""

    batch_id: BatchId
    total: int
    created_at: float
    """Seconds since the epoch."""
    cancelled: bool
    finished_at: float | None


@dataclass(frozen=True, slots=True)
class ListedBatch:
    """A batch and its place in the order in which batches were added, from 1."""

    place: int
    state: BatchState


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch as it was accepted. ``request`` is its canonical JSON; equal bytes mean an equal batch."""

    batch_id: BatchId
    request: bytes
    total: int
    created_at: float
    """Seconds since the epoch."""
    cancelled: bool
    finished_at: float | None

    @property
    def state(self) -> BatchState:
        """The batch without its request."""
        return BatchState(self.batch_id, self.total, self.created_at, self.cancelled, self.finished_at)


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A finished trajectory; ``sequence`` is its place in the batch's order of finishing, from 1."""

    sequence: int
    trajectory_id: TrajectoryId
    status: str
    record: bytes


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """Sums over the finished trajectories of a batch."""

    by_status: dict[str, int]
    sampled_tokens: int


@dataclass(frozen=True, slots=True)
class QuarantineEntry:
    """A trajectory whose record was refused; ``sequence`` grows in the order of refusal."""

    sequence: int
    trajectory_id: TrajectoryId
    batch_id: BatchId
    violations: tuple[GateViolation, ...]


@dataclass(frozen=True, slots=True)
class StoreStats:
    """What a store has done since it was opened; the refusals are for operators to look at."""

    appended: int = 0
    committed: int = 0
    duplicates: int = 0
    """Repeated writes of what was there already."""
    late: int = 0
    conflicting: int = 0
    transactions: int = 0
    full_disks: int = 0
    """Times that the disk was found to be full."""
    waiting: int = 0
    """Writes that are not committed yet."""


class Store(Journal, Protocol):
    """Journal plus queries. Writes go through one writer thread; every write awaits its commit."""

    @property
    def stats(self) -> StoreStats:
        """What was done since it was opened."""
        ...

    async def add_batch(self, batch: StoredBatch) -> bool:
        """Returns False, and writes nothing, where the id exists already."""
        ...

    async def mark_cancelled(self, batch_id: BatchId) -> None: ...

    async def mark_finished(self, batch_id: BatchId, at: float) -> None: ...

    async def batches(self, *, before: int | None, limit: int) -> Sequence[ListedBatch]:
        """The latest first; ``before`` is a place in the order in which they were added."""
        ...

    async def unfinished_batches(self) -> Sequence[BatchState]:
        """Those without a finish mark, in the order in which they were added."""
        ...

    async def batch_state(self, batch_id: BatchId) -> BatchState | None: ...

    async def batch(self, batch_id: BatchId) -> StoredBatch | None:
        """With its request."""
        ...

    async def counts(self, batch_id: BatchId) -> BatchCounts: ...

    async def finished(self, batch_id: BatchId, *, after: int, limit: int) -> Sequence[StoredRecord]: ...

    async def finished_ids(self, batch_id: BatchId) -> set[TrajectoryId]: ...

    async def trajectory(self, trajectory_id: TrajectoryId) -> bytes | None:
        """The finished record, or None."""
        ...

    async def entries(self, trajectory_id: TrajectoryId) -> Sequence[JournalEntry]:
        """The journal of an open trajectory over all of its attempts, in order."""
        ...

    async def quarantine(self, *, after: int, limit: int) -> Sequence[QuarantineEntry]:
        """Refused records, in the order of refusal."""
        ...

    async def quarantine_counts(self) -> Mapping[Gate, int]:
        """Refused records by gate; one that several gates refused counts for each."""
        ...

    def journals(
        self, trajectory_ids: Sequence[TrajectoryId]
    ) -> AsyncIterator[tuple[TrajectoryId, Sequence[JournalEntry]]]:
        """``entries`` of many, read a few at a time; those that have none are left out."""
        ...

    async def close(self) -> None:
        """Commit what is queued and stop the writer."""
        ...
