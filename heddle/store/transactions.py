"""One transaction per group of writes, and exactly the guilty fail.

A group that the database refuses is rolled back and tried again in halves, down to the single write that is
at fault: its caller gets the error, everyone else's write is committed. A full disk is nobody's fault: it is
waited for, within bounds, and everything that needs a commit waits with it. Runs in the writer thread.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import structlog

from heddle.agent.journal import JournalEntry
from heddle.errors import StoreError
from heddle.store.ports import StoreStats
from heddle.store.rules import ConflictingWrite, FinishedRow, LateWrite, Write
from heddle.store.tables import diagnose, write_group
from heddle.store.writer import Outcome

_UNWRITABLE = (sqlite3.Error, OverflowError, UnicodeEncodeError)
"""What the sqlite3 module raises on a write; the last two come of values that SQLite cannot hold."""


FULL_DISK_RETRY_S = 0.25

log = structlog.get_logger(__name__)


class Transactions:
    """Commits groups on one connection, which only the calling thread may use."""

    def __init__(self, path: Path, connection: sqlite3.Connection, patience_s: float) -> None:
        """``patience_s`` is the longest wait for room on a full disk; then the writes that wait fail."""
        self._path = path
        self._patience_s = patience_s
        self._connection = connection
        self._give_up_at: float | None = None
        """While the disk is full."""
        self.stats = StoreStats()
        """Replaced, never changed: other threads may read it at any time."""

    def apply(self, writes: Sequence[Write]) -> Sequence[Outcome]:
        """Commit what can be committed; one outcome per write, in order."""
        outcomes = self._commit(writes)
        self._count(writes, outcomes)
        return outcomes

    def _commit(self, writes: Sequence[Write]) -> list[Outcome]:
        try:
            return list(self._transact_patiently(writes))
        except _UNWRITABLE as exc:
            if len(writes) == 1:
                return [self._explain(writes[0], exc)]
        half = len(writes) // 2
        return [*self._commit(writes[:half]), *self._commit(writes[half:])]

    def _transact_patiently(self, writes: Sequence[Write]) -> list[bool]:
        while True:
            try:
                written = self._transact(writes)
            except sqlite3.OperationalError as exc:
                if exc.sqlite_errorcode != sqlite3.SQLITE_FULL or not self._wait_for_room():
                    raise
            else:
                self._give_up_at = None
                return written

    def _wait_for_room(self) -> bool:
        """False where that has taken too long."""
        now = time.monotonic()
        if self._give_up_at is None:
            self._give_up_at = now + self._patience_s
            self.stats = replace(self.stats, full_disks=self.stats.full_disks + 1)
            log.error("store.disk_full", path=str(self._path), waits_s=self._patience_s)
        if now >= self._give_up_at:
            return False
        time.sleep(FULL_DISK_RETRY_S)
        return True

    def _transact(self, writes: Sequence[Write]) -> list[bool]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            written = write_group(self._connection, writes)
            self._connection.execute("COMMIT")
        finally:
            if self._connection.in_transaction:  # some errors (a full disk) have rolled back already
                self._connection.execute("ROLLBACK")
        return written

    def _explain(self, write: Write, error: Exception) -> Outcome:
        try:
            if isinstance(error, sqlite3.IntegrityError):
                return diagnose(self._connection, write) or False
        except sqlite3.Error as exc:
            error = exc
        failure = StoreError(f"cannot write store {self._path}: {error}")
        failure.__cause__ = error
        return failure

    def _count(self, writes: Sequence[Write], outcomes: Sequence[Outcome]) -> None:
        made = [write for write, outcome in zip(writes, outcomes, strict=True) if outcome is True]
        stats = self.stats
        self.stats = replace(
            stats,
            appended=stats.appended + sum(isinstance(write, JournalEntry) for write in made),
            committed=stats.committed + sum(isinstance(write, FinishedRow) for write in made),
            duplicates=stats.duplicates + sum(outcome is False for outcome in outcomes),
            late=stats.late + sum(isinstance(outcome, LateWrite) for outcome in outcomes),
            conflicting=stats.conflicting
            + sum(isinstance(outcome, ConflictingWrite) for outcome in outcomes),
            transactions=stats.transactions + 1,
        )
