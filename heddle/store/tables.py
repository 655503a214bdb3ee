"""The set-based statements that write the SQLite file.

Everything is written by a few statements per transaction, whatever the number of rows. Each statement
releases the interpreter's lock once, and on a busy event loop getting it back is what costs: row by row,
a thousand rows would wait for it a thousand times.

What may not be written the database itself refuses (:mod:`heddle.store.schema`); ``diagnose`` finds out why
a single refused write was refused.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TypeAlias, TypeVar

import orjson
from pydantic import TypeAdapter, ValidationError

from heddle.agent.journal import JournalEntry
from heddle.errors import StoreError
from heddle.store.gates import GateViolation
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
from heddle.validation import in_words

MAX_ROWS_PER_STATEMENT = 256

SqlValue: TypeAlias = str | bytes | int | float | None
_Item = TypeVar("_Item")
_VIOLATIONS: TypeAdapter[tuple[GateViolation, ...]] = TypeAdapter(tuple[GateViolation, ...])


def decode_violations(cell: bytes) -> tuple[GateViolation, ...]:
    """What a row of the quarantine says. Raises ``StoreError``."""
    try:
        return _VIOLATIONS.validate_json(cell)
    except ValidationError as exc:
        raise StoreError(f"a row of the quarantine is damaged: {in_words(exc)}") from exc


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
    _insert_quarantined(connection, [row for row in finished if row.violations])


def _insert_quarantined(connection: sqlite3.Connection, refused: Sequence[FinishedRow]) -> None:
    connection.executemany(
        "INSERT INTO quarantine (trajectory_id, batch_id, violations) VALUES (?, ?, ?)",
        [(row.trajectory_id, row.batch_id, orjson.dumps(row.violations)) for row in refused],
    )
    connection.executemany(
        "INSERT INTO quarantine_counts VALUES (?, ?) ON CONFLICT DO UPDATE SET "
        "trajectories = trajectories + excluded.trajectories",
        list(Counter(gate for row in refused for gate in row.gates).items()),
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
