"""Files that an older Heddle wrote: brought to the present format, with everything that is in them."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from store_builders import make_entry, make_trajectory

from heddle.records import decode_trajectory, encode_trajectory
from heddle.store.schema import SCHEMA_VERSION
from heddle.store.sqlite import open_store
from heddle.types import BatchId, TrajectoryId

FORMAT_1 = """
CREATE TABLE batches (
    batch_id TEXT PRIMARY KEY,
    request BLOB NOT NULL,
    total INTEGER NOT NULL,
    created_at REAL NOT NULL,
    cancelled INTEGER NOT NULL,
    finished_at REAL
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
PRAGMA user_version = 1;
"""
FORMAT_2 = (
    FORMAT_1
    + """
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
PRAGMA user_version = 2;
"""
)
OPEN = TrajectoryId("b-g0-t1")
STARTED = b'{"key":"b-g0-t1/0/1/call_1_0/0"}'
FINISHED = b'{"key":"b-g0-t1/0/1/call_1_0/0","result":{"output":"b-g0-t1/0/1 was paid"}}'


def write_old_file(path: Path, schema: str) -> None:
    """A batch of two: one trajectory has finished, the other has paid and not observed it yet."""
    record = make_trajectory("b-g0-t0")
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript(schema)
    connection.execute(
        "INSERT INTO batches (batch_id, request, total, created_at, cancelled) VALUES ('b', ?, 2, 1000.5, 0)",
        (b'{"prompts":[1]}',),
    )
    connection.execute(
        "INSERT INTO finished VALUES ('b', 1, 'b-g0-t0', 0, 'completed', ?)", (encode_trajectory(record),)
    )
    connection.execute("INSERT INTO counts VALUES ('b', 'completed', 1, ?)", (record.sampled_tokens,))
    entries = [("generation", b"[1]"), ("call_started", STARTED), ("call_finished", FINISHED)]
    for sequence, (kind, payload) in enumerate(entries):
        connection.execute("INSERT INTO journal VALUES (?, 0, ?, ?, ?)", (OPEN, sequence, kind, payload))
    connection.commit()
    connection.close()


@pytest.mark.parametrize("schema", [FORMAT_1, FORMAT_2], ids=["format 1", "format 2"])
async def test_an_older_file_is_brought_to_the_present_format(schema: str, tmp_path: Path) -> None:
    """Batch, record and journal are there; calls are known by the keys that they have now."""
    path = tmp_path / "store.db"
    write_old_file(path, schema)
    for _ in range(2):  # the second time there is nothing left to do
        async with open_store(path) as store:
            stored = await store.batch(BatchId("b"))
            assert stored is not None
            assert (stored.request, stored.total, stored.created_at) == (b'{"prompts":[1]}', 2, 1000.5)
            (finished,) = await store.finished(BatchId("b"), after=0, limit=9)
            assert decode_trajectory(finished.record) == make_trajectory("b-g0-t0")
            assert (await store.counts(BatchId("b"))).by_status == {"completed": 1}
            assert [entry.payload for entry in await store.entries(OPEN)] == [
                b"[1]",
                b'{"key":"b-g0-t1/1/call_1_0/0"}',
                b'{"key":"b-g0-t1/1/call_1_0/0","result":{"output":"b-g0-t1/0/1 was paid"}}',
            ]
            assert await store.quarantine(after=0, limit=9) == []
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    connection.close()


async def test_an_older_file_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """The open trajectory takes further entries, and ends."""
    path = tmp_path / "store.db"
    write_old_file(path, FORMAT_1)
    async with open_store(path) as store:
        await store.append(make_entry(OPEN, attempt=1, sequence=3, kind="resumed"))
        await store.commit(make_trajectory(OPEN, attempt=1))
        assert await store.finished_ids(BatchId("b")) == {"b-g0-t0", OPEN}
        assert await store.entries(OPEN) == []
