"""Random histories: both stores answer as a plain model does, and reopening the file changes nothing."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st
from store_builders import make_batch, make_entry, make_trajectory

from heddle.agent.journal import JournalEntry
from heddle.errors import StoreError
from heddle.records import Trajectory, encode_trajectory
from heddle.store.memory import MemoryStore
from heddle.store.ports import BatchCounts, ListedBatch, Store, StoredBatch, StoredRecord
from heddle.store.rules import CancelMark, ConflictingWrite, FinishMark, LateWrite
from heddle.store.sqlite import open_store
from heddle.types import BatchId, TrajectoryId

BATCH_IDS = ("a", "b")
TRAJECTORY_IDS = ("a-g0-t0", "a-g0-t1", "b-g0-t0")


@dataclass(frozen=True)
class Reopen:
    """Close the file and open it again."""


Operation: TypeAlias = JournalEntry | Trajectory | StoredBatch | CancelMark | FinishMark | Reopen

ENTRIES = st.builds(
    make_entry,
    st.sampled_from(TRAJECTORY_IDS),
    attempt=st.integers(0, 2),
    sequence=st.integers(0, 2),
    kind=st.sampled_from(["generation", "observation"]),
    payload=st.sampled_from([b"x", b""]),
)
TRAJECTORIES = st.builds(
    lambda id_, attempt, reward: make_trajectory(id_, batch_id=id_[0], attempt=attempt, reward=reward),
    st.sampled_from(TRAJECTORY_IDS),
    st.integers(0, 2),
    st.sampled_from([0.0, 1.0]),
)
BATCHES = st.builds(make_batch, st.sampled_from(BATCH_IDS), st.integers(1, 3))
MARKS = st.builds(CancelMark, st.sampled_from([BatchId(id_) for id_ in BATCH_IDS])) | st.builds(
    FinishMark, st.sampled_from([BatchId(id_) for id_ in BATCH_IDS]), st.floats(1.0, 9.0)
)
HISTORIES = st.lists(ENTRIES | TRAJECTORIES | BATCHES | MARKS | st.builds(Reopen), max_size=30)


@dataclass
class Model:
    """The rules, said as plainly as possible and with no thought for cost."""

    batches: list[StoredBatch] = field(default_factory=list)
    journal: list[JournalEntry] = field(default_factory=list)
    finished: list[Trajectory] = field(default_factory=list)

    def apply(self, operation: Operation) -> str:
        """Carry it out; the name of what came of it."""
        match operation:
            case JournalEntry():
                return self._append(operation)
            case Trajectory():
                return self._commit(operation)
            case StoredBatch(batch_id):
                if any(batch.batch_id == batch_id for batch in self.batches):
                    return "False"
                self.batches.append(operation)
                return "True"
            case CancelMark(batch_id):
                return self._mark(batch_id, lambda batch: replace(batch, cancelled=True))
            case FinishMark(batch_id, at):
                return self._mark(
                    batch_id, lambda batch: batch if batch.finished_at else replace(batch, finished_at=at)
                )
            case Reopen():
                return "None"

    def _append(self, entry: JournalEntry) -> str:
        key = (entry.attempt, entry.sequence)
        own = [known for known in self.journal if known.trajectory_id == entry.trajectory_id]
        done = any(known.trajectory_id == entry.trajectory_id for known in self.finished)
        if done or any(known.attempt > entry.attempt for known in own):
            return "LateWrite"
        same_place = [known for known in own if (known.attempt, known.sequence) == key]
        if same_place:
            return "None" if same_place == [entry] else "ConflictingWrite"
        self.journal.append(entry)
        return "None"

    def _commit(self, trajectory: Trajectory) -> str:
        id_ = trajectory.trajectory_id
        before = [known for known in self.finished if known.trajectory_id == id_]
        if before:
            return "None" if before == [trajectory] else "ConflictingWrite"
        if any(known.trajectory_id == id_ and known.attempt > trajectory.attempt for known in self.journal):
            return "LateWrite"
        self.journal = [known for known in self.journal if known.trajectory_id != id_]
        self.finished.append(trajectory)
        return "None"

    def _mark(self, batch_id: BatchId, change: Callable[[StoredBatch], StoredBatch]) -> str:
        if all(batch.batch_id != batch_id for batch in self.batches):
            return "StoreError"
        self.batches = [change(batch) if batch.batch_id == batch_id else batch for batch in self.batches]
        return "None"

    def answers(self) -> list[object]:
        """What a store must say to every question of :func:`ask`."""
        listed = [ListedBatch(place, batch.state) for place, batch in enumerate(self.batches, start=1)]
        said: list[object] = [listed[::-1]]
        for batch_id in BATCH_IDS:
            batch = next((batch for batch in self.batches if batch.batch_id == batch_id), None)
            said += [batch, None if batch is None else batch.state]
            own = [record for record in self.finished if record.batch_id == batch_id]
            statuses = [record.status.value for record in own]
            tokens = sum(record.sampled_tokens for record in own)
            said.append(BatchCounts({status: statuses.count(status) for status in statuses}, tokens))
            said.append([_stored(place, record) for place, record in enumerate(own, start=1)])
            said.append({record.trajectory_id for record in own})
        for id_ in TRAJECTORY_IDS:
            entries = [entry for entry in self.journal if entry.trajectory_id == id_]
            entries.sort(key=lambda entry: (entry.sequence, entry.attempt))
            said.append(list({entry.sequence: entry for entry in entries}.values()))
        return said


def _stored(sequence: int, record: Trajectory) -> StoredRecord:
    id_, status = TrajectoryId(record.trajectory_id), record.status.value
    return StoredRecord(sequence, id_, status, encode_trajectory(record))


async def ask(store: Store) -> list[object]:
    """Every question that a store answers."""
    said: list[object] = [await store.batches(before=None, limit=100)]
    for batch_id in map(BatchId, BATCH_IDS):
        said += [await store.batch(batch_id), await store.batch_state(batch_id)]
        said.append(await store.counts(batch_id))
        said.append(await store.finished(batch_id, after=0, limit=100))
        said.append(await store.finished_ids(batch_id))
    said += [await store.entries(TrajectoryId(id_)) for id_ in TRAJECTORY_IDS]
    return said


async def perform(store: Store, operation: Operation) -> str:
    """Ask a store to carry it out; the name of what came of it."""
    try:
        match operation:
            case JournalEntry():
                await store.append(operation)
            case Trajectory():
                await store.commit(operation)
            case StoredBatch():
                return str(await store.add_batch(operation))
            case CancelMark(batch_id):
                await store.mark_cancelled(batch_id)
            case FinishMark(batch_id, at):
                await store.mark_finished(batch_id, at)
            case Reopen():
                pass
    except (LateWrite, ConflictingWrite, StoreError) as exc:
        return type(exc).__name__
    return "None"


@settings(max_examples=40, deadline=None)
@given(history=HISTORIES)
def test_both_stores_follow_the_model(history: list[Operation]) -> None:
    """Every outcome and, at the end, every answer is the model's."""
    model = Model()
    expected = [model.apply(operation) for operation in history]
    with tempfile.TemporaryDirectory() as directory:
        outcomes, said = asyncio.run(_through_sqlite(history, Path(directory) / "store.db"))
    assert (outcomes, said) == (expected, model.answers())
    assert asyncio.run(_through_memory(history)) == (expected, model.answers())


async def _through_sqlite(history: list[Operation], path: Path) -> tuple[list[str], list[object]]:
    outcomes: list[str] = []
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_store(path, gather_s=0.0))
        for operation in history:
            if isinstance(operation, Reopen):
                await stack.aclose()
                store = await stack.enter_async_context(open_store(path, gather_s=0.0))
            outcomes.append(await perform(store, operation))
        return outcomes, await ask(store)


async def _through_memory(history: list[Operation]) -> tuple[list[str], list[object]]:
    store = MemoryStore()
    outcomes = [await perform(store, operation) for operation in history]
    return outcomes, await ask(store)
