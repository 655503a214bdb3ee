"""The durable store: one SQLite file, one writer thread, one reader thread, one owning process.

Writes are group-committed by a :class:`~heddle.store.writer.GroupWriter`; reads go to a read-only connection
of their own, which in write-ahead-log mode neither waits for the writer nor holds it up. Nothing blocks
the event loop, and a read sees every write whose await has returned.

Durability: what an awaited write has returned for survives the death of the process at any point
(``kill -9`` included). ``synchronous="normal"``, the default, leaves it to the operating system when the
log reaches the disk, so a power cut may undo the last moments, in order and never in part; ``"full"``
waits for the disk at every group.

Growth: committing a trajectory drops its journal in the same transaction, and SQLite uses the pages again.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from heddle.agent.journal import JournalEntry
from heddle.errors import StoreError
from heddle.records import Trajectory
from heddle.store.gates import Gate, GateViolation
from heddle.store.lock import OwnerLock
from heddle.store.ports import (
    BatchCounts,
    BatchState,
    ListedBatch,
    QuarantineEntry,
    StoredBatch,
    StoredRecord,
    StoreStats,
)
from heddle.store.rules import CancelMark, FinishMark, finished_row, in_force
from heddle.store.schema import Synchronous, open_database, open_reader
from heddle.store.tables import decode_violations
from heddle.store.transactions import Transactions
from heddle.store.writer import GroupWriter
from heddle.types import BatchId, TrajectoryId

GATHER_S = 0.002
"""How long a transaction waits for company. Bounds transactions to 500/s, each of which costs a busy event
loop a few hand-overs of the interpreter's lock; adds 2 ms to a write, where a step takes hundreds."""

FULL_DISK_PATIENCE_S = 60.0
"""How long writes wait for room on a full disk before they fail."""

_STATE = "batch_id, total, created_at, cancelled, finished_at"
"""The columns of ``BatchState``, in its order."""

_LAST_ROWID = 2**63 - 1

JOURNALS_AT_ONCE = 64
"""Trajectories whose journals one query reads."""


@dataclass(frozen=True, slots=True)
class _OpenFile:
    """Everything that one open store holds on to, acquired and released together."""

    path: Path
    lock: OwnerLock
    writing: sqlite3.Connection
    reading: sqlite3.Connection

    @classmethod
    def acquire(cls, path: Path, synchronous: Synchronous) -> _OpenFile:
        """Raises ``StoreError``; then nothing is held."""
        if not path.parent.is_dir():
            raise StoreError(f"cannot open store {path}: there is no directory {path.parent}")
        lock = OwnerLock(path)
        try:
            writing = open_database(path, synchronous)
            try:
                return cls(path, lock, writing, open_reader(path))
            except StoreError:
                writing.close()
                raise
        except StoreError:
            lock.release()
            raise

    def release(self) -> None:
        self.reading.close()
        self.writing.close()
        self.lock.release()


@asynccontextmanager
async def open_store(
    path: Path,
    *,
    synchronous: Synchronous = "normal",
    gather_s: float = GATHER_S,
    patience_s: float = FULL_DISK_PATIENCE_S,
) -> AsyncIterator[SqliteStore]:
    """Open (or make) the store at ``path`` and close it at the end.

    Raises ``StoreError`` that names the path: its directory is missing, it cannot be written, a newer Heddle
    wrote it, it is no database, or another process owns it (named).
    """
    opening = asyncio.create_task(asyncio.to_thread(_OpenFile.acquire, path, synchronous))
    try:
        file = await asyncio.shield(opening)
    except asyncio.CancelledError:
        (await opening).release()  # the thread cannot be cancelled; what it acquired would stay locked
        raise
    store = SqliteStore(file, gather_s, patience_s)
    try:
        yield store
    finally:
        await store.close()


class SqliteStore:
    """Implements ``heddle.store.ports.Store``. Made by :func:`open_store`, used on that event loop only.

    Every method raises ``StoreError`` where the database fails, and after :meth:`close`.
    """

    def __init__(self, file: _OpenFile, gather_s: float, patience_s: float) -> None:
        self._file = file
        self._transactions = Transactions(file.path, file.writing, patience_s)
        self._writer = GroupWriter(self._transactions.apply, gather_s=gather_s)
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="heddle-store-reader")
        self._closed = False

    @property
    def stats(self) -> StoreStats:
        """What was done since the store was opened."""
        return replace(self._transactions.stats, waiting=self._writer.waiting)

    # ------------------------------------------------------------------------------ writes

    async def append(self, entry: JournalEntry) -> None:
        await self._writer.write(entry)

    async def commit(self, trajectory: Trajectory, violations: Sequence[GateViolation] = ()) -> None:
        await self._writer.write(finished_row(trajectory, violations))

    async def add_batch(self, batch: StoredBatch) -> bool:
        return await self._writer.write(batch)

    async def mark_cancelled(self, batch_id: BatchId) -> None:
        await self._writer.write(CancelMark(batch_id))

    async def mark_finished(self, batch_id: BatchId, at: float) -> None:
        await self._writer.write(FinishMark(batch_id, at))

    # ------------------------------------------------------------------------------- reads

    async def batches(self, *, before: int | None, limit: int) -> Sequence[ListedBatch]:
        query = f"SELECT rowid, {_STATE} FROM batches WHERE rowid < ? ORDER BY rowid DESC LIMIT ?"
        rows = await self._rows(query, _LAST_ROWID if before is None else before, max(0, limit))
        return [ListedBatch(place, _batch_state(*cells)) for place, *cells in rows]

    async def unfinished_batches(self) -> Sequence[BatchState]:
        rows = await self._rows(f"SELECT {_STATE} FROM batches WHERE finished_at IS NULL ORDER BY rowid")
        return [_batch_state(*row) for row in rows]

    async def batch_state(self, batch_id: BatchId) -> BatchState | None:
        rows = await self._rows(f"SELECT {_STATE} FROM batches WHERE batch_id = ?", batch_id)
        return _batch_state(*rows[0]) if rows else None

    async def batch(self, batch_id: BatchId) -> StoredBatch | None:
        rows = await self._rows(f"SELECT {_STATE}, request FROM batches WHERE batch_id = ?", batch_id)
        if not rows:
            return None
        *cells, request = rows[0]
        state = _batch_state(*cells)
        return StoredBatch(
            state.batch_id, request, state.total, state.created_at, state.cancelled, state.finished_at
        )

    async def counts(self, batch_id: BatchId) -> BatchCounts:
        """One row per status, kept up by the commits: no scan, whatever the size of the batch."""
        query = "SELECT status, trajectories, sampled_tokens FROM counts WHERE batch_id = ?"
        rows = await self._rows(query, batch_id)
        return BatchCounts(
            by_status={status: number for status, number, _ in rows},
            sampled_tokens=sum(tokens for _, _, tokens in rows),
        )

    async def finished(self, batch_id: BatchId, *, after: int, limit: int) -> Sequence[StoredRecord]:
        query = (
            "SELECT sequence, trajectory_id, status, record FROM finished "
            "WHERE batch_id = ? AND sequence > ? ORDER BY sequence LIMIT ?"
        )
        rows = await self._rows(query, batch_id, after, max(0, limit))
        return [StoredRecord(*row) for row in rows]

    async def finished_ids(self, batch_id: BatchId) -> set[TrajectoryId]:
        rows = await self._rows("SELECT trajectory_id FROM finished WHERE batch_id = ?", batch_id)
        return {row[0] for row in rows}

    async def trajectory(self, trajectory_id: TrajectoryId) -> bytes | None:
        rows = await self._rows("SELECT record FROM finished WHERE trajectory_id = ?", trajectory_id)
        return rows[0][0] if rows else None

    async def entries(self, trajectory_id: TrajectoryId) -> Sequence[JournalEntry]:
        return [entry async for _, entries in self.journals([trajectory_id]) for entry in entries]

    async def journals(
        self, trajectory_ids: Sequence[TrajectoryId]
    ) -> AsyncIterator[tuple[TrajectoryId, Sequence[JournalEntry]]]:
        slices = [
            trajectory_ids[start : start + JOURNALS_AT_ONCE]
            for start in range(0, len(trajectory_ids), JOURNALS_AT_ONCE)
        ]
        ahead = [self._journal_rows(some) for some in slices[:1]]
        for following in range(1, len(slices) + 1):  # read while the caller makes something of those before
            rows = await ahead.pop()
            ahead += [self._journal_rows(some) for some in slices[following : following + 1]]
            for trajectory_id, own in groupby(map(_entry, rows), key=lambda entry: entry.trajectory_id):
                yield trajectory_id, in_force(own)

    def _journal_rows(self, trajectory_ids: Sequence[TrajectoryId]) -> asyncio.Future[list[tuple[Any, ...]]]:
        query = (
            "SELECT trajectory_id, attempt, sequence, kind, payload FROM journal "
            f"WHERE trajectory_id IN ({', '.join('?' * len(trajectory_ids))}) "
            "ORDER BY trajectory_id, attempt, sequence"
        )
        return self._start_reading(query, *trajectory_ids)

    async def quarantine(self, *, after: int, limit: int) -> Sequence[QuarantineEntry]:
        query = (
            "SELECT sequence, trajectory_id, batch_id, violations FROM quarantine "
            "WHERE sequence > ? ORDER BY sequence LIMIT ?"
        )
        rows = await self._rows(query, after, max(0, limit))
        return [
            QuarantineEntry(sequence, trajectory_id, batch_id, decode_violations(violations))
            for sequence, trajectory_id, batch_id, violations in rows
        ]

    async def quarantine_counts(self) -> Mapping[Gate, int]:
        rows = await self._rows("SELECT gate, trajectories FROM quarantine_counts ORDER BY gate")
        return {Gate(gate): trajectories for gate, trajectories in rows}

    # ------------------------------------------------------------------------------- close

    async def close(self) -> None:
        """Commit what is queued, stop both threads, give the file up. May be called again."""
        if self._closed:
            return
        self._closed = True
        await self._writer.close()
        await asyncio.to_thread(self._release)

    def _release(self) -> None:
        self._reader.shutdown()
        self._file.release()

    async def _rows(self, query: str, *values: str | int) -> list[tuple[Any, ...]]:
        """The cells are what the schema says they are; SQLite cannot tell a type checker."""
        return await self._start_reading(query, *values)

    def _start_reading(self, query: str, *values: str | int) -> asyncio.Future[list[tuple[Any, ...]]]:
        if self._closed:
            raise StoreError("the store is closed")
        return asyncio.get_running_loop().run_in_executor(self._reader, self._read, query, values)

    def _read(self, query: str, values: tuple[str | int, ...]) -> list[tuple[Any, ...]]:
        try:
            return self._file.reading.execute(query, values).fetchall()
        except sqlite3.Error as exc:
            raise StoreError(f"cannot read store {self._file.path}: {exc}") from exc


def _entry(row: tuple[Any, ...]) -> JournalEntry:
    return JournalEntry(*row)


def _batch_state(
    batch_id: str, total: int, created_at: float, cancelled: int, finished_at: float | None
) -> BatchState:
    return BatchState(BatchId(batch_id), total, created_at, bool(cancelled), finished_at)
