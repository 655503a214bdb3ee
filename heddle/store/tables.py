"""The SQLite file: its schema, and the set-based statements that write it.

Everything is written by a few statements per transaction, whatever the number of rows. Each statement
releases the interpreter's lock once, and on a busy event loop getting it back is what costs: row by row,
a thousand rows would wait for it a thousand times.

The database itself refuses what may not be written (keys and two triggers), so the common path looks
nothing up; ``diagnose`` finds out why a single refused write was refused.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

from heddle.agent.ports import JournalEntry
from heddle.errors import StoreError
from heddle.store.ports import StoredBatch
from heddle.store.rules import (
    CancelMark,
    FinishedRow,
    FinishMark,
    Write,
    already_finished,
    entry_differs,
    no_such_batch,
    record_differs,
    superseded,
)

SCHEMA_VERSION = 1
BUSY_TIMEOUT_S = 10.0
"""Only a foreign reader (a shell, a backup) can make the writer wait; then this long."""
WAL_LIMIT_BYTES = 64 * 1024 * 1024
"""The write-ahead log is cut back to this size after a checkpoint."""
MAX_ROWS_PER_STATEMENT = 256

Synchronous: TypeAlias = Literal["normal", "full"]
SqlValue: TypeAlias = str | bytes | int | float | None
_Item = TypeVar("_Item")

_SCHEMA = f"""
BEGIN;
CREATE TABLE batches (
    batch_id TEXT PRIMARY KEY,
    total INTEGER NOT NULL,
    created_at REAL NOT NULL,
    cancelled INTEGER NOT NULL,
    finished_at REAL,
    request BLOB NOT NULL -- last: what stands behind a large value is found by walking all of its pages
);
CREATE TABLE journal (
    trajectory_id TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    kind TEXT NOT NULL,
    payload BLOB NOT NULL,
    PRIMARY KEY (trajectory_id, attempt, sequence)
);
CREATE TABLE finished (
    batch_id TEXT NOT NULL,
    sequence INTEGER NOT NULL,
    trajectory_id TEXT NOT NULL UNIQUE,
    attempt INTEGER NOT NULL,
    status TEXT NOT NULL,
    record BLOB NOT NULL,
    PRIMARY KEY (batch_id, sequence)
);
CREATE TABLE counts (
    batch_id TEXT NOT NULL,
    status TEXT NOT NULL,
    trajectories INTEGER NOT NULL,
    sampled_tokens INTEGER NOT NULL,
    PRIMARY KEY (batch_id, status)
) WITHOUT ROWID;
CREATE TRIGGER late_entry BEFORE INSERT ON journal
WHEN EXISTS (SELECT 1 FROM finished WHERE trajectory_id = NEW.trajectory_id)
  OR EXISTS (SELECT 1 FROM journal WHERE trajectory_id = NEW.trajectory_id AND attempt > NEW.attempt)
BEGIN SELECT RAISE(ABORT, 'late'); END;
CREATE TRIGGER late_record BEFORE INSERT ON finished
WHEN EXISTS (SELECT 1 FROM journal WHERE trajectory_id = NEW.trajectory_id AND attempt > NEW.attempt)
BEGIN SELECT RAISE(ABORT, 'late'); END;
PRAGMA user_version = {SCHEMA_VERSION};
COMMIT;
"""


def open_database(path: Path, synchronous: Synchronous) -> sqlite3.Connection:
    """The writing connection; makes the file and its tables. Raises ``StoreError`` that names the path."""
    try:
        connection = _connect(path, mode="rwc")
        try:
            _prepare(connection, path, synchronous)
        except (sqlite3.Error, StoreError):
            connection.close()
            raise
    except sqlite3.Error as exc:
        raise StoreError(f"cannot open store {path}: {exc}") from exc
    return connection


def open_reader(path: Path) -> sqlite3.Connection:
    """A read-only connection to a store that exists. Raises ``StoreError``."""
    try:
        return _connect(path, mode="ro")
    except sqlite3.Error as exc:
        raise StoreError(f"cannot read store {path}: {exc}") from exc


def _connect(path: Path, *, mode: str) -> sqlite3.Connection:
    # Opened by one thread and used by another, never by two at once.
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
    )


def _prepare(connection: sqlite3.Connection, path: Path, synchronous: Synchronous) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"store {path} has format {version}, written by a newer Heddle; "
            f"this one reads up to {SCHEMA_VERSION}"
        )
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    connection.execute(f"PRAGMA journal_size_limit = {WAL_LIMIT_BYTES}")
    if version == 0:
        connection.executescript(_SCHEMA)
    connection.execute(
        "BEGIN IMMEDIATE"
    )  # a file that cannot be written is found now, not at the first write
    connection.execute("ROLLBACK")


# --------------------------------------------------------------------------------------------- writing


def write_group(connection: sqlite3.Connection, writes: Sequence[Write]) -> list[bool]:
    """Write everything within the open transaction; True for each that was not there already.

    Raises ``sqlite3.IntegrityError`` where any of it may not be written; the caller then rolls back.
    """
    written = [
        _write_batch(connection, write) if isinstance(write, StoredBatch | CancelMark | FinishMark) else True
        for write in writes
    ]
    _insert_entries(connection, [write for write in writes if isinstance(write, JournalEntry)])
    _insert_finished(connection, [write for write in writes if isinstance(write, FinishedRow)])
    return written


def _write_batch(connection: sqlite3.Connection, write: StoredBatch | CancelMark | FinishMark) -> bool:
    match write:
        case StoredBatch():
            cursor = connection.execute(
                "INSERT OR IGNORE INTO batches "
                "(batch_id, total, created_at, cancelled, finished_at, request) VALUES (?, ?, ?, ?, ?, ?)",
                (
                    write.batch_id,
                    write.total,
                    write.created_at,
                    write.cancelled,
                    write.finished_at,
                    write.request,
                ),
            )
            return cursor.rowcount == 1
        case CancelMark(batch_id):
            cursor = connection.execute("UPDATE batches SET cancelled = 1 WHERE batch_id = ?", (batch_id,))
        case FinishMark(batch_id, at):
            cursor = connection.execute(
                "UPDATE batches SET finished_at = COALESCE(finished_at, ?) WHERE batch_id = ?", (at, batch_id)
            )
    if cursor.rowcount == 0:
        raise sqlite3.IntegrityError("no such batch")
    return True


def _insert_entries(connection: sqlite3.Connection, entries: Sequence[JournalEntry]) -> None:
    rows: list[tuple[SqlValue, ...]] = [
        (entry.trajectory_id, entry.attempt, entry.sequence, entry.kind, entry.payload) for entry in entries
    ]
    _insert(connection, "journal", rows)


def _insert_finished(connection: sqlite3.Connection, finished: Sequence[FinishedRow]) -> None:
    """Number the rows from the last one of their batch on, add up the counts, drop the journals."""
    if not finished:
        return
    last = {row.batch_id: _last_sequence(connection, row.batch_id) for row in finished}
    rows: list[tuple[SqlValue, ...]] = []
    trajectories: Counter[tuple[str, str]] = Counter()
    tokens: Counter[tuple[str, str]] = Counter()
    for row in finished:
        last[row.batch_id] += 1
        sequence = last[row.batch_id]
        rows.append((row.batch_id, sequence, row.trajectory_id, row.attempt, row.status, row.record))
        trajectories[row.batch_id, row.status] += 1
        tokens[row.batch_id, row.status] += row.sampled_tokens
    _insert(connection, "finished", rows)
    for chunk in _chunks([row.trajectory_id for row in finished]):
        marks = ", ".join("?" * len(chunk))
        connection.execute(f"DELETE FROM journal WHERE trajectory_id IN ({marks})", chunk)
    connection.executemany(
        "INSERT INTO counts VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
        "trajectories = trajectories + excluded.trajectories, "
        "sampled_tokens = sampled_tokens + excluded.sampled_tokens",
        [(*key, trajectories[key], tokens[key]) for key in trajectories],
    )


def _insert(connection: sqlite3.Connection, table: str, rows: Sequence[tuple[SqlValue, ...]]) -> None:
    for chunk in _chunks(rows):
        marks = ", ".join("?" * len(chunk[0]))
        values = ", ".join([f"({marks})"] * len(chunk))
        connection.execute(f"INSERT INTO {table} VALUES {values}", [cell for row in chunk for cell in row])


def _chunks(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    """Split into lengths that are powers of two: few statements, and few texts for SQLite to prepare."""
    start = 0
    while start < len(items):
        size = min(MAX_ROWS_PER_STATEMENT, 1 << ((len(items) - start).bit_length() - 1))
        yield items[start : start + size]
        start += size


def _last_sequence(connection: sqlite3.Connection, batch_id: str) -> int:
    query = "SELECT COALESCE(MAX(sequence), 0) FROM finished WHERE batch_id = ?"
    (sequence,) = connection.execute(query, (batch_id,)).fetchone()
    return int(sequence)


def _newest_attempt(connection: sqlite3.Connection, trajectory_id: str) -> int | None:
    """The newest attempt in the journal of an open trajectory."""
    query = "SELECT MAX(attempt) FROM journal WHERE trajectory_id = ?"
    (attempt,) = connection.execute(query, (trajectory_id,)).fetchone()
    return None if attempt is None else int(attempt)


def diagnose(connection: sqlite3.Connection, write: Write) -> StoreError | None:
    """Why the database refused this write; None where the very same is there already."""
    match write:
        case JournalEntry():
            return _diagnose_entry(connection, write)
        case FinishedRow():
            return _diagnose_finished(connection, write)
        case StoredBatch() | CancelMark() | FinishMark():
            return no_such_batch(write.batch_id)


def _diagnose_entry(connection: sqlite3.Connection, entry: JournalEntry) -> StoreError | None:
    if _record_of(connection, entry.trajectory_id) is not None:
        return already_finished(entry)
    newest = _newest_attempt(connection, entry.trajectory_id)
    if newest is not None and newest > entry.attempt:
        return superseded(entry.trajectory_id, entry.attempt, newest)
    query = "SELECT kind, payload FROM journal WHERE trajectory_id = ? AND attempt = ? AND sequence = ?"
    key = (entry.trajectory_id, entry.attempt, entry.sequence)
    same = connection.execute(query, key).fetchone() == (entry.kind, entry.payload)
    return None if same else entry_differs(entry)


def _diagnose_finished(connection: sqlite3.Connection, row: FinishedRow) -> StoreError | None:
    record = _record_of(connection, row.trajectory_id)
    if record is not None:
        return None if record == row.record else record_differs(row)
    newest = _newest_attempt(connection, row.trajectory_id)
    return superseded(row.trajectory_id, row.attempt, newest if newest is not None else row.attempt)


def _record_of(connection: sqlite3.Connection, trajectory_id: str) -> bytes | None:
    query = "SELECT record FROM finished WHERE trajectory_id = ?"
    found: tuple[bytes] | None = connection.execute(query, (trajectory_id,)).fetchone()
    return None if found is None else found[0]
