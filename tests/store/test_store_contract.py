"""What every store promises, whatever keeps it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from store_builders import make_batch, make_entry, make_trajectory

from heddle.agent.journal import JournalEntry
from heddle.errors import StoreError
from heddle.records import decode_trajectory
from heddle.store.gates import Gate, GateViolation
from heddle.store.memory import MemoryStore
from heddle.store.ports import BatchCounts, ListedBatch, QuarantineEntry, Store
from heddle.store.rules import ConflictingWrite, LateWrite
from heddle.store.sqlite import SqliteStore, open_store
from heddle.types import BatchId, TrajectoryId, TrajectoryStatus

B = BatchId("b")
T = TrajectoryId("b-g0-t0")


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MemoryStore | SqliteStore]:
    """Each implementation in turn."""
    if request.param == "memory":
        yield MemoryStore()
    else:
        async with open_store(tmp_path / "store.db") as sqlite:
            yield sqlite


async def test_a_batch_is_added_once(store: Store) -> None:
    """The second batch of an id is refused and changes nothing."""
    assert await store.add_batch(make_batch(total=4)) is True
    assert await store.add_batch(make_batch(total=5)) is False
    assert await store.batches(before=None, limit=9) == [ListedBatch(1, make_batch(total=4).state)]
    assert await store.batch_state(B) == make_batch(total=4).state
    assert await store.batch(B) == make_batch(total=4)
    assert await store.batch(BatchId("other")) is None
    assert await store.batch_state(BatchId("other")) is None


async def test_batches_come_in_pages_from_the_latest_to_the_first(store: Store) -> None:
    """The order of adding decides, neither ids nor times; a page goes on before the last place of another."""
    for batch_id in ("c", "a", "b"):
        await store.add_batch(make_batch(batch_id))
    first = await store.batches(before=None, limit=2)
    rest = await store.batches(before=first[-1].place, limit=2)
    assert [(entry.place, entry.state.batch_id) for entry in [*first, *rest]] == [
        (3, "b"),
        (2, "a"),
        (1, "c"),
    ]
    assert await store.batches(before=1, limit=2) == []
    assert await store.batches(before=None, limit=0) == []


async def test_unfinished_batches_come_in_the_order_in_which_they_were_added(store: Store) -> None:
    """A recovery needs them all, and no others; a cancelled one may still have open trajectories."""
    for batch_id in ("c", "a", "b"):
        await store.add_batch(make_batch(batch_id))
    await store.mark_finished(BatchId("a"), 5.0)
    await store.mark_cancelled(BatchId("b"))
    assert [batch.batch_id for batch in await store.unfinished_batches()] == ["c", "b"]


async def test_a_refused_record_is_in_the_quarantine_with_all_its_reasons(store: Store) -> None:
    """Counted once for each gate, however many findings; pages go on after a sequence."""
    findings = [GateViolation(Gate.MASK, "a"), GateViolation(Gate.MASK, "b"), GateViolation(Gate.TIMING, "c")]
    await store.commit(make_trajectory("b-g0-t0"))
    await store.commit(make_trajectory("b-g0-t1"), findings)
    await store.commit(make_trajectory("b-g0-t2"), findings[2:])
    await store.commit(make_trajectory("b-g0-t1"), findings)  # a repeated write is the same write

    first, second = await store.quarantine(after=0, limit=10)
    assert first == QuarantineEntry(1, TrajectoryId("b-g0-t1"), B, tuple(findings))
    assert second == QuarantineEntry(2, TrajectoryId("b-g0-t2"), B, (findings[2],))
    assert await store.quarantine(after=1, limit=1) == [second]
    assert await store.quarantine(after=2, limit=1) == []
    assert await store.quarantine_counts() == {Gate.MASK: 1, Gate.TIMING: 2}
    assert (await store.counts(B)).by_status == {"completed": 3}


async def test_marks_of_a_batch_stay(store: Store) -> None:
    """Cancelled and finished are remembered; the first time of finishing wins."""
    await store.add_batch(make_batch())
    await store.mark_cancelled(B)
    await store.mark_finished(B, 2000.0)
    await store.mark_finished(B, 3000.0)
    assert await store.batch(B) == replace(make_batch(), cancelled=True, finished_at=2000.0)


async def test_marking_an_unknown_batch_is_an_error(store: Store) -> None:
    """Nothing is silently marked."""
    with pytest.raises(StoreError, match="no batch nope"):
        await store.mark_cancelled(BatchId("nope"))
    with pytest.raises(StoreError, match="no batch nope"):
        await store.mark_finished(BatchId("nope"), 1.0)


async def test_the_journal_of_all_attempts_comes_back_in_order(store: Store) -> None:
    """Sequence orders them, not the order of writing; of two in one place the newer attempt's counts."""
    first = [make_entry(attempt=0, sequence=n) for n in range(3)]
    second = [make_entry(attempt=2, sequence=n, payload=bytes([n, 0, 255])) for n in range(2, 5)]
    for entry in (*first, second[0], second[2], second[1]):
        await store.append(entry)
    assert await store.entries(T) == [*first[:2], *second]
    assert await store.entries(TrajectoryId("b-g9-t9")) == []


async def test_the_same_entry_twice_is_one_entry(store: MemoryStore | SqliteStore) -> None:
    """A repeated append is a no-op and is counted."""
    await store.append(make_entry())
    await store.append(make_entry())
    assert await store.entries(T) == [make_entry()]
    assert (store.stats.appended, store.stats.duplicates) == (1, 1)


@pytest.mark.parametrize("other", [make_entry(kind="observation"), make_entry(payload=b"else")])
async def test_another_entry_in_the_same_place_is_a_conflict(
    store: MemoryStore | SqliteStore, other: JournalEntry
) -> None:
    """What is journalled is never overwritten."""
    await store.append(make_entry())
    with pytest.raises(ConflictingWrite, match="entry 0 of attempt 0 exists"):
        await store.append(other)
    assert await store.entries(T) == [make_entry()]
    assert store.stats.conflicting == 1


async def test_an_older_attempt_is_late(store: MemoryStore | SqliteStore) -> None:
    """Once a newer attempt has written, entries and the record of an older one are refused and counted."""
    await store.append(make_entry(attempt=2))
    with pytest.raises(LateWrite, match="attempt 1 is superseded by attempt 2"):
        await store.append(make_entry(attempt=1))
    with pytest.raises(LateWrite, match="attempt 1 is superseded by attempt 2"):
        await store.commit(make_trajectory(attempt=1))
    assert await store.trajectory(T) is None
    assert await store.entries(T) == [make_entry(attempt=2)]
    assert store.stats.late == 2


async def test_a_committed_record_is_visible_and_its_journal_is_gone(store: Store) -> None:
    """The record comes back equal, and nothing is left to resume."""
    trajectory = make_trajectory()
    await store.append(make_entry())
    await store.commit(trajectory)
    record = await store.trajectory(T)
    assert record is not None
    assert decode_trajectory(record) == trajectory
    assert await store.entries(T) == []


async def test_a_trajectory_finishes_once(store: MemoryStore | SqliteStore) -> None:
    """The same record again is a no-op, another one a conflict, a further entry is late."""
    await store.commit(make_trajectory(reward=1.0))
    await store.commit(make_trajectory(reward=1.0))
    with pytest.raises(ConflictingWrite, match="finished with another record"):
        await store.commit(make_trajectory(reward=0.0))
    with pytest.raises(LateWrite, match="has finished"):
        await store.append(make_entry(attempt=5))
    (stored,) = await store.finished(B, after=0, limit=10)
    assert decode_trajectory(stored.record).reward == 1.0
    stats = store.stats
    assert (stats.committed, stats.duplicates, stats.conflicting, stats.late) == (1, 1, 1, 1)


async def test_sequences_count_each_batch_from_one(store: Store) -> None:
    """Commits that wait together are numbered without a gap, in their order, batch by batch."""
    ids = [f"{batch}-g0-t{sample}" for sample in range(40) for batch in ("a", "b")]
    await asyncio.gather(*(store.commit(make_trajectory(id_, batch_id=id_[0])) for id_ in ids))
    for batch in ("a", "b"):
        records = await store.finished(BatchId(batch), after=0, limit=100)
        assert [record.sequence for record in records] == list(range(1, 41))
        assert [record.trajectory_id for record in records] == [id_ for id_ in ids if id_[0] == batch]
        assert await store.finished_ids(BatchId(batch)) == {id_ for id_ in ids if id_[0] == batch}


async def test_pages_follow_the_cursor(store: Store) -> None:
    """``after`` is exclusive and ``limit`` bounds the page."""
    for sample in range(5):
        await store.commit(make_trajectory(f"b-g0-t{sample}"))
    assert [record.sequence for record in await store.finished(B, after=1, limit=2)] == [2, 3]
    assert [record.sequence for record in await store.finished(B, after=4, limit=100)] == [5]
    assert await store.finished(B, after=5, limit=100) == []
    assert await store.finished(B, after=0, limit=0) == []
    assert await store.finished(BatchId("other"), after=0, limit=10) == []


async def test_counts_are_sums_by_status(store: Store) -> None:
    """A refused or repeated commit is not counted."""
    assert await store.counts(B) == BatchCounts({}, 0)
    await store.commit(make_trajectory("b-g0-t0", steps=1))
    await store.commit(make_trajectory("b-g0-t1", steps=2))
    await store.commit(replace(make_trajectory("b-g0-t2", steps=3), status=TrajectoryStatus.TRUNCATED))
    await store.commit(make_trajectory("b-g0-t1", steps=2))
    assert await store.counts(B) == BatchCounts({"completed": 2, "truncated": 1}, sampled_tokens=18)


async def test_one_bad_write_among_many_fails_alone(store: Store) -> None:
    """Everyone who waited in the same group as a refused write gets through."""
    await store.append(make_entry("b-g0-t13", payload=b"first"))
    writes = [store.append(make_entry(f"b-g0-t{number}")) for number in range(30)]
    outcomes = await asyncio.gather(*writes, return_exceptions=True)
    failed = {number for number, outcome in enumerate(outcomes) if outcome is not None}
    assert failed == {13}
    assert isinstance(outcomes[13], ConflictingWrite)
    assert await store.entries(TrajectoryId("b-g0-t29")) == [make_entry("b-g0-t29")]


async def test_an_unencodable_record_is_a_store_error(store: Store) -> None:
    """A lone surrogate cannot be JSON; the message names the trajectory."""
    with pytest.raises(StoreError, match="b-g0-t0 cannot be encoded"):
        await store.commit(replace(make_trajectory(), metadata={"text": "\ud800"}))


async def test_a_closed_store_refuses(store: Store) -> None:
    """Closing twice is fine; using it afterwards is an error, not a hang."""
    await store.close()
    await store.close()
    with pytest.raises(StoreError, match="closed"):
        await store.append(make_entry())
    with pytest.raises(StoreError, match="closed"):
        await store.batches(before=None, limit=1)
