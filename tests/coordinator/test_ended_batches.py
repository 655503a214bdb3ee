"""A batch that is over is answered from memory, and the store says the same after a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from job_harness import Job, collect

from heddle.coordinator import runner
from heddle.errors import NotFound
from heddle.store.ports import BatchCounts
from heddle.store.sqlite import SqliteStore
from heddle.types import BatchId


async def unasked(*_: object) -> None:
    raise AssertionError("the store was asked")


async def test_the_status_of_an_ended_batch_does_not_wait_for_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(request={"samples_per_prompt": 3})
    async with job.coordinator(tmp_path) as coordinator:
        await coordinator.submit(job.batch())
        await collect(coordinator, "b")
        with monkeypatch.context() as patched:
            patched.setattr(SqliteStore, "batch_state", unasked)
            patched.setattr(SqliteStore, "counts", unasked)
            status = await coordinator.batch("b")
    assert (status.state, status.finished, status.by_status) == ("finished", 3, {"completed": 3})

    async with job.coordinator(tmp_path) as coordinator:
        assert await coordinator.batch("b") == status


async def test_only_the_latest_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are asked for; none is forgotten."""
    monkeypatch.setattr(runner, "ENDED_REMEMBERED", 2)
    asked = list[str]()
    ask = SqliteStore.counts

    async def note(store: SqliteStore, batch_id: BatchId) -> BatchCounts:
        asked.append(batch_id)
        return await ask(store, batch_id)

    job = Job()
    async with asyncio.timeout(60), job.coordinator(tmp_path) as coordinator:
        for number in range(3):
            await coordinator.submit(job.batch(batch_id=f"b{number}"))
            await collect(coordinator, f"b{number}")
        monkeypatch.setattr(SqliteStore, "counts", note)
        states = [(await coordinator.batch(f"b{number}")).state for number in range(3)]
        with pytest.raises(NotFound):
            await coordinator.batch("b3")
    assert states == ["finished"] * 3
    assert asked == ["b0"]
