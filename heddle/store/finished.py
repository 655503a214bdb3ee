"""Finished records out of a store's file, without owning the store: also while a coordinator writes to it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from heddle.errors import StoreError
from heddle.store.schema import check_version, open_reader
from heddle.types import BatchId, TrajectoryId

STORE_NAME = "heddle.db"
"""A coordinator's store in its data directory."""

RECORDS_AT_ONCE = 64
"""Records that one query reads: a long query would keep the owner from cutting its write-ahead log back."""

_MAGIC = b"SQLite format 3\x00"

_PAGE = (
    "SELECT rowid, trajectory_id, record FROM finished "
    "WHERE rowid > ?1 AND (?2 IS NULL OR batch_id = ?2) ORDER BY rowid LIMIT ?3"
)
_LAST_BATCH = (
    "SELECT batch_id FROM batches WHERE finished_at IS NOT NULL AND NOT cancelled "
    "ORDER BY finished_at DESC, rowid DESC LIMIT 1"
)


def store_at(path: Path) -> Path | None:
    """The store that ``path`` is, or holds where it is a data directory; ``None`` for anything else.

    Raises ``OSError`` where the path cannot be read.
    """
    if path.is_dir():
        return path / STORE_NAME
    with path.open("rb") as file:
        return path if file.read(len(_MAGIC)) == _MAGIC else None


def last_finished_batch(path: Path) -> BatchId | None:
    """The batch that finished last without having been cancelled; ``None`` where none has.

    Raises ``StoreError`` as :func:`finished_records` does.
    """
    with _reading(path) as connection:
        row = connection.execute(_LAST_BATCH).fetchone()
    return None if row is None else BatchId(row[0])


def finished_records(path: Path, batch_id: BatchId | None = None) -> Iterator[tuple[TrajectoryId, bytes]]:
    """Records in the order in which they were committed, each with its trajectory's id.

    Those of one batch, or without ``batch_id`` all. Raises ``StoreError`` that names the path: there is no
    store, or one that this Heddle cannot read.
    """
    with _reading(path) as connection:
        rows = connection.execute(_PAGE, (0, batch_id, RECORDS_AT_ONCE)).fetchall()
        while rows:
            yield from ((trajectory_id, record) for _, trajectory_id, record in rows)
            rows = connection.execute(_PAGE, (rows[-1][0], batch_id, RECORDS_AT_ONCE)).fetchall()


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    if not path.is_file():
        raise StoreError(f"there is no store {path}")
    try:
        with closing(open_reader(path)) as connection:
            check_version(connection, path)
            yield connection
    except sqlite3.Error as exc:
        raise StoreError(f"cannot read store {path}: {exc}") from exc
