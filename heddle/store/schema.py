"""The SQLite file: its schema, and how it is opened.

The database itself refuses what may not be written (keys and two triggers), so that the common path looks
nothing up.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Literal, TypeAlias

from heddle.errors import StoreError

SCHEMA_VERSION = 4
BUSY_TIMEOUT_S = 10.0
"""Only a foreign reader (a shell, a backup) can make the writer wait; then this long."""
WAL_LIMIT_BYTES = 64 * 1024 * 1024
"""The write-ahead log is cut back to this size after a checkpoint."""

Synchronous: TypeAlias = Literal["normal", "full"]

_QUARANTINE = """
CREATE TABLE quarantine (
    sequence INTEGER PRIMARY KEY,
    trajectory_id TEXT NOT NULL UNIQUE,
    batch_id TEXT NOT NULL,
    violations BLOB NOT NULL
);
CREATE TABLE quarantine_counts (
    gate TEXT PRIMARY KEY,
    trajectories INTEGER NOT NULL
) WITHOUT ROWID;
"""
"""Came with version 2."""

_KEYS_WITHOUT_ATTEMPT = """
UPDATE journal SET payload = CAST(replace(
    CAST(payload AS TEXT),
    '"key":"' || trajectory_id || '/' || attempt || '/',
    '"key":"' || trajectory_id || '/'
) AS BLOB) WHERE kind IN ('call_started', 'call_finished');
"""
"""Version 3: the key of a tool call stays the same in every attempt, and attempts share one numbering."""

_SCHEMA = f"""
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
{_QUARANTINE}
"""


_ARRAYS_BESIDE_JSON = ""
"""Version 4: journal payloads with their arrays behind the JSON; those of before stay as they are."""

_STEPS = (_QUARANTINE, _KEYS_WITHOUT_ATTEMPT, _ARRAYS_BESIDE_JSON)
"""From version 1 to 2, from 2 to 3, from 3 to 4."""


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


def check_version(connection: sqlite3.Connection, path: Path) -> int:
    """The version of a store's tables, 0 where it has none. Raises ``StoreError`` for a newer Heddle's."""
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"store {path} has format {version}, written by a newer Heddle; "
            f"this one reads up to {SCHEMA_VERSION}"
        )
    return version


def _prepare(connection: sqlite3.Connection, path: Path, synchronous: Synchronous) -> None:
    version = check_version(connection, path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    connection.execute(f"PRAGMA journal_size_limit = {WAL_LIMIT_BYTES}")
    if version < SCHEMA_VERSION:
        missing = _SCHEMA if version == 0 else "".join(_STEPS[version - 1 :])
        connection.executescript(f"BEGIN; {missing} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
    connection.execute(
        "BEGIN IMMEDIATE"
    )  # a file that cannot be written is found now, not at the first write
    connection.execute("ROLLBACK")
