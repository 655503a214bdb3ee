"""A store in memory: the same answers as the durable one, gone with the process.

For tests, examples and benchmarks of what stands on top of a store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from heddle.agent.journal import JournalEntry
from heddle.errors import StoreError
from heddle.records import Trajectory
from heddle.store.gates import Gate, GateViolation
from heddle.store.ports import (
    BatchCounts,
    BatchState,
    ListedBatch,
    QuarantineEntry,
    StoredBatch,
    StoredRecord,
    StoreStats,
)
from heddle.store.rules import (
    ConflictingWrite,
    FinishedRow,
    LateWrite,
    already_finished,
    entry_differs,
    finished_row,
    in_force,
    no_such_batch,
    record_differs,
    superseded,
)
from heddle.types import BatchId, TrajectoryId


@dataclass(slots=True)
class _OpenTrajectory:
    """The journal of a trajectory, by attempt and sequence."""

    entries: dict[tuple[int, int], JournalEntry] = field(default_factory=dict)
    newest_attempt: int | None = None


class MemoryStore:
    """Implements ``heddle.store.ports.Store``. A write is committed when its call returns."""

    def __init__(self) -> None:
        self._batches: dict[BatchId, StoredBatch] = {}
        self._open: dict[TrajectoryId, _OpenTrajectory] = {}
        self._rows: dict[TrajectoryId, FinishedRow] = {}
        self._finished: dict[BatchId, list[FinishedRow]] = {}
        self._quarantined: list[FinishedRow] = []
        self._stats = StoreStats()
        self._closed = False

    @property
    def stats(self) -> StoreStats:
        """What was done since the store was made; each write counts as one transaction."""
        return self._stats

    async def append(self, entry: JournalEntry) -> None:
        self._begin_write()
        if entry.trajectory_id in self._rows:
            raise self._refused(already_finished(entry))
        journal = self._open.get(entry.trajectory_id, _OpenTrajectory())
        newest = journal.newest_attempt
        if newest is not None and newest > entry.attempt:
            raise self._refused(superseded(entry.trajectory_id, entry.attempt, newest))
        present = journal.entries.setdefault((entry.attempt, entry.sequence), entry)
        if present is not entry:
            self._expect_same(present == entry, entry_differs(entry))
            return
        journal.newest_attempt = entry.attempt
        self._open[entry.trajectory_id] = journal
        self._stats = replace(self._stats, appended=self._stats.appended + 1)

    async def commit(self, trajectory: Trajectory, violations: Sequence[GateViolation] = ()) -> None:
        row = finished_row(trajectory, violations)
        self._begin_write()
        present = self._rows.get(row.trajectory_id)
        if present is not None:
            self._expect_same(present.record == row.record, record_differs(row))
            return
        newest = self._open.get(row.trajectory_id, _OpenTrajectory()).newest_attempt
        if newest is not None and newest > row.attempt:
            raise self._refused(superseded(row.trajectory_id, row.attempt, newest))
        self._open.pop(row.trajectory_id, None)
        self._rows[row.trajectory_id] = row
        self._finished.setdefault(row.batch_id, []).append(row)
        if row.violations:
            self._quarantined.append(row)
        self._stats = replace(self._stats, committed=self._stats.committed + 1)

    async def add_batch(self, batch: StoredBatch) -> bool:
        self._begin_write()
        added = self._batches.setdefault(batch.batch_id, batch) is batch
        if not added:
            self._stats = replace(self._stats, duplicates=self._stats.duplicates + 1)
        return added

    async def mark_cancelled(self, batch_id: BatchId) -> None:
        self._begin_write()
        self._batches[batch_id] = replace(self._known(batch_id), cancelled=True)

    async def mark_finished(self, batch_id: BatchId, at: float) -> None:
        self._begin_write()
        batch = self._known(batch_id)
        if batch.finished_at is None:
            self._batches[batch_id] = replace(batch, finished_at=at)

    async def batches(self, *, before: int | None, limit: int) -> Sequence[ListedBatch]:
        self._expect_open()
        listed = [ListedBatch(n, batch.state) for n, batch in enumerate(self._batches.values(), start=1)]
        older = listed if before is None else listed[: max(0, before - 1)]
        return older[::-1][: max(0, limit)]

    async def unfinished_batches(self) -> Sequence[BatchState]:
        self._expect_open()
        return [batch.state for batch in self._batches.values() if batch.finished_at is None]

    async def batch_state(self, batch_id: BatchId) -> BatchState | None:
        batch = await self.batch(batch_id)
        return None if batch is None else batch.state

    async def batch(self, batch_id: BatchId) -> StoredBatch | None:
        self._expect_open()
        return self._batches.get(batch_id)

    async def counts(self, batch_id: BatchId) -> BatchCounts:
        self._expect_open()
        rows = self._finished.get(batch_id, [])
        by_status: dict[str, int] = {}
        for row in rows:
            by_status[row.status] = by_status.get(row.status, 0) + 1
        return BatchCounts(by_status, sum(row.sampled_tokens for row in rows))

    async def finished(self, batch_id: BatchId, *, after: int, limit: int) -> Sequence[StoredRecord]:
        self._expect_open()
        first = max(0, after)
        page = self._finished.get(batch_id, [])[first : first + max(0, limit)]
        return [
            StoredRecord(first + place, row.trajectory_id, row.status, row.record)
            for place, row in enumerate(page, start=1)
        ]

    async def finished_ids(self, batch_id: BatchId) -> set[TrajectoryId]:
        self._expect_open()
        return {row.trajectory_id for row in self._finished.get(batch_id, [])}

    async def trajectory(self, trajectory_id: TrajectoryId) -> bytes | None:
        self._expect_open()
        row = self._rows.get(trajectory_id)
        return None if row is None else row.record

    async def entries(self, trajectory_id: TrajectoryId) -> Sequence[JournalEntry]:
        self._expect_open()
        journal = self._open.get(trajectory_id, _OpenTrajectory())
        return in_force([journal.entries[key] for key in sorted(journal.entries)])

    async def journals(
        self, trajectory_ids: Sequence[TrajectoryId]
    ) -> AsyncIterator[tuple[TrajectoryId, Sequence[JournalEntry]]]:
        for trajectory_id in trajectory_ids:
            if entries := await self.entries(trajectory_id):
                yield trajectory_id, entries

    async def quarantine(self, *, after: int, limit: int) -> Sequence[QuarantineEntry]:
        self._expect_open()
        first = max(0, after)
        page = self._quarantined[first : first + max(0, limit)]
        return [
            QuarantineEntry(first + place, row.trajectory_id, row.batch_id, row.violations)
            for place, row in enumerate(page, start=1)
        ]

    async def quarantine_counts(self) -> Mapping[Gate, int]:
        self._expect_open()
        counts = Counter(gate for row in self._quarantined for gate in row.gates)
        return {Gate(gate): counts[gate] for gate in sorted(counts)}

    async def close(self) -> None:
        self._closed = True

    def _expect_open(self) -> None:
        if self._closed:
            raise StoreError("the store is closed")

    def _begin_write(self) -> None:
        self._expect_open()
        self._stats = replace(self._stats, transactions=self._stats.transactions + 1)

    def _known(self, batch_id: BatchId) -> StoredBatch:
        if batch_id not in self._batches:
            raise no_such_batch(batch_id)
        return self._batches[batch_id]

    def _expect_same(self, same: bool, otherwise: StoreError) -> None:
        if not same:
            raise self._refused(otherwise)
        self._stats = replace(self._stats, duplicates=self._stats.duplicates + 1)

    def _refused(self, error: StoreError) -> StoreError:
        stats = self._stats
        self._stats = replace(
            stats,
            late=stats.late + isinstance(error, LateWrite),
            conflicting=stats.conflicting + isinstance(error, ConflictingWrite),
        )
        return error
