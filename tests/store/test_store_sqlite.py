"""What only the durable store promises: files, locks, threads, crashes."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
from store_builders import make_batch, make_entry, make_trajectory

from heddle.errors import StoreError
from heddle.store import lock, schema
from heddle.store.schema import Synchronous
from heddle.store.sqlite import SqliteStore, open_store
from heddle.types import BatchId, TrajectoryId

B = BatchId("b")

# ------------------------------------------------------------------------------------------- opening


async def test_everything_is_there_after_reopening(tmp_path: Path) -> None:
    """Batches, journals and records outlive the process that wrote them."""
    path = tmp_path / "store.db"
    async with open_store(path) as store:
        await store.add_batch(make_batch())
        await store.commit(make_trajectory("b-g0-t0"))
        await store.append(make_entry("b-g0-t1"))
    async with open_store(path) as store:
        assert await store.batch(B) == make_batch()
        assert await store.finished_ids(B) == {"b-g0-t0"}
        assert await store.entries(TrajectoryId("b-g0-t1")) == [make_entry("b-g0-t1")]
        await store.commit(make_trajectory("b-g0-t1"))
        assert [record.sequence for record in await store.finished(B, after=0, limit=9)] == [1, 2]


@pytest.mark.parametrize(("mode", "level"), [("normal", 1), ("full", 2)])
async def test_the_durability_asked_for_is_in_force(mode: Synchronous, level: int, tmp_path: Path) -> None:
    """Write-ahead logging, at the asked level of synchronisation."""
    connection = schema.open_database(tmp_path / "store.db", mode)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA synchronous").fetchone() == (level,)
    connection.close()
    async with open_store(tmp_path / "store.db", synchronous=mode) as store:
        await store.append(make_entry())
        assert await store.entries(TrajectoryId("b-g0-t0")) == [make_entry()]


async def test_a_second_owner_is_refused_and_told_who_has_it(tmp_path: Path) -> None:
    """The lock ends with its owner."""
    path = tmp_path / "store.db"
    async with open_store(path):
        with pytest.raises(StoreError, match=rf"{re.escape(str(path))} is in use by process \d+ on "):
            async with open_store(path):
                pass
    async with open_store(path) as store:
        assert await store.batches(before=None, limit=1) == []


async def test_the_lock_of_a_dead_owner_is_waited_for(tmp_path: Path) -> None:
    """A child that a killed owner was about to start still holds it for a moment."""
    with (tmp_path / "store.db.lock").open("wb", buffering=0) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        held.write(f"process {_dead_pid()} on {socket.gethostname()}".encode())
        opening = asyncio.create_task(_open_and_close(tmp_path / "store.db"))
        finished, _ = await asyncio.wait({opening}, timeout=0.1)
        assert not finished
    async with asyncio.timeout(lock.HANDOVER_S):
        await opening


def _dead_pid() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        return process.pid


async def _open_and_close(path: Path) -> None:
    async with open_store(path):
        pass


async def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    """Nothing is made on the way."""
    path = tmp_path / "nowhere" / "store.db"
    with pytest.raises(StoreError, match=f"no directory {re.escape(str(path.parent))}"):
        async with open_store(path):
            pass
    assert not path.parent.exists()


async def test_a_foreign_file_is_refused_and_released(tmp_path: Path) -> None:
    """A file that is no database is an error with its path, and stays as it is."""
    path = tmp_path / "store.db"
    path.write_text("not a database, but long enough to have a header " * 20)
    before = path.read_bytes()
    for _ in range(2):  # the second time shows that the first one let go of the lock
        with pytest.raises(StoreError, match=re.escape(str(path))):
            async with open_store(path):
                pass
    assert path.read_bytes() == before


async def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    """An older Heddle does not guess at what a newer one wrote."""
    path = tmp_path / "store.db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StoreError, match=r"store\.db has format 99, written by a newer Heddle"):
        async with open_store(path):
            pass


async def test_a_directory_in_its_place_is_an_error(tmp_path: Path) -> None:
    """Whatever keeps the file from being opened names the path."""
    path = tmp_path / "store.db"
    path.mkdir()
    with pytest.raises(StoreError, match=re.escape(str(path))):
        async with open_store(path):
            pass


async def test_cancelling_the_opening_releases_the_lock(tmp_path: Path) -> None:
    """What the thread acquires after the caller is gone is given back."""

    async def hold() -> None:
        async with open_store(tmp_path / "store.db"):
            await asyncio.Event().wait()

    task = asyncio.create_task(hold())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with open_store(tmp_path / "store.db") as store:
        assert await store.batches(before=None, limit=1) == []


# ------------------------------------------------------------------------------------------- writing


async def test_concurrent_writes_share_transactions(tmp_path: Path) -> None:
    """A thousand waiting callers cost a handful of transactions."""
    async with open_store(tmp_path / "store.db") as store:
        await asyncio.gather(*(store.append(make_entry(f"b-g{n}-t0")) for n in range(1000)))
        assert store.stats.appended == 1000
        assert store.stats.transactions < 100
        assert store.stats.waiting == 0


async def test_a_poisoned_write_fails_alone(tmp_path: Path) -> None:
    """A value that SQLite cannot hold takes nobody along."""
    async with open_store(tmp_path / "store.db") as store:
        writes = [store.append(make_entry(f"b-g{n}-t0", sequence=2**70 if n == 7 else 0)) for n in range(50)]
        outcomes = await asyncio.gather(*writes, return_exceptions=True)
        assert {n for n, outcome in enumerate(outcomes) if outcome is not None} == {7}
        assert isinstance(outcomes[7], StoreError)
        assert str(tmp_path) in str(outcomes[7])
        assert store.stats.appended == 49


async def test_a_cancelled_caller_does_not_undo_its_write(tmp_path: Path) -> None:
    """What was handed over is written, and its neighbours are not disturbed."""
    async with open_store(tmp_path / "store.db") as store:
        abandoned = asyncio.create_task(store.append(make_entry("b-g0-t0")))
        await asyncio.sleep(0)
        abandoned.cancel()
        await store.append(make_entry("b-g0-t1"))
        assert abandoned.cancelled()
        assert await store.entries(TrajectoryId("b-g0-t0")) == [make_entry("b-g0-t0")]


async def test_closing_commits_what_is_queued(tmp_path: Path) -> None:
    """Nobody who handed a write over before the close is left without an answer."""
    path = tmp_path / "store.db"
    async with open_store(path) as store:
        tasks = [asyncio.create_task(store.append(make_entry(f"b-g{n}-t0"))) for n in range(200)]
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    async with open_store(path) as store:
        assert await store.entries(TrajectoryId("b-g199-t0")) == [make_entry("b-g199-t0")]


async def test_reads_do_not_wait_for_writes(tmp_path: Path) -> None:
    """While a transaction holds the file, a reader sees what was committed before it."""
    path = tmp_path / "store.db"
    async with open_store(path) as store:
        await store.add_batch(make_batch())
        blocker = sqlite3.connect(path, isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        write = asyncio.create_task(store.append(make_entry()))
        async with asyncio.timeout(30):
            assert await store.batch(B) == make_batch()
        assert not write.done()
        blocker.execute("ROLLBACK")
        blocker.close()
        await write


async def test_the_file_does_not_grow_with_finished_work(tmp_path: Path) -> None:
    """Journals of committed trajectories leave no trace but their records."""
    path = tmp_path / "store.db"

    async def rounds(store: SqliteStore, numbers: range) -> None:
        for number in numbers:
            id_ = f"b-g{number}-t0"
            entries = [make_entry(id_, sequence=n, payload=b"p" * 10_000) for n in range(20)]
            await asyncio.gather(*(store.append(entry) for entry in entries))
            await store.commit(make_trajectory(id_))

    async with open_store(path) as store:
        await rounds(store, range(5))
    early = path.stat().st_size
    async with open_store(path) as store:
        await rounds(store, range(5, 25))
    assert path.stat().st_size < early + 20 * 10_000  # twenty rounds journalled 4 MB


# ------------------------------------------------------------------------------------------- crashes

_CHILD = """
import asyncio, sys
from pathlib import Path
from store_builders import make_entry, make_trajectory
from heddle.store.sqlite import SqliteStore, open_store

async def work(store, lane):
    for number in range(1_000_000):
        id_ = f"b-g{lane}-t{number}"
        await store.append(make_entry(id_))
        await store.commit(make_trajectory(id_))
        print(id_, flush=True)

async def main():
    async with open_store(Path(sys.argv[1])) as store, asyncio.TaskGroup() as lanes:
        for lane in range(8):
            lanes.create_task(work(store, lane))

asyncio.run(main())
"""


async def test_kill_9_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """After the kill every acknowledged record is there, numbered without a gap, and the lock is free."""
    path = tmp_path / "store.db"
    acknowledged = await asyncio.to_thread(_run_and_kill, path, 200)
    async with open_store(path) as store:
        records = await store.finished(B, after=0, limit=1_000_000)
        assert [record.sequence for record in records] == list(range(1, len(records) + 1))
        ids = [record.trajectory_id for record in records]
        assert len(ids) == len(set(ids))
        assert acknowledged - set(ids) == set()
        assert (await store.counts(B)).by_status == {"completed": len(ids)}
        for id_ in ids:
            assert await store.entries(id_) == []


def _run_and_kill(path: Path, records: int) -> set[str]:
    """Start a process that commits records, kill it in full flight, return what it had acknowledged."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(path)], stdout=subprocess.PIPE, env=environment, text=True
    ) as child:
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(records)]
        child.kill()
        lines += child.stdout.readlines()
    assert child.returncode == -signal.SIGKILL
    return {line.strip() for line in lines if line.endswith("\n")}


async def test_how_batches_stand_is_told_without_their_requests(tmp_path: Path) -> None:
    """A server that lists its batches every second must not read every request that it ever got."""
    megabyte = b'"' + b"x" * (1 << 20) + b'"'
    async with open_store(tmp_path / "heddle.db") as store:
        for number in range(20):
            await store.add_batch(replace(make_batch(f"b{number}"), request=megabyte))
        tracemalloc.start()
        try:
            states = [*await store.batches(before=None, limit=100), await store.batch_state(BatchId("b7"))]
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

    assert len(states) == 21
    assert peak < len(megabyte)
