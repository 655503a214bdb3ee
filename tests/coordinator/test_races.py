"""What happens between two awaits: nothing is missed, and nothing is reported that is not so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from job_harness import Job, collect

from heddle.coordinator.service import Coordinator
from heddle.store.sqlite import SqliteStore
from heddle.types import TrajectoryId

TRAJECTORY = "b-g0-t0"


@asynccontextmanager
async def slow_batch(tmp_path: Path) -> AsyncIterator[Coordinator]:
    """A coordinator with one open batch of one trajectory, which ends when dispatch is resumed."""
    job = Job()
    async with job.coordinator(tmp_path) as coordinator:
        await coordinator.pause()
        await coordinator.submit(job.batch())
        yield coordinator


def end_after_first(
    read: Callable[..., object], coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Let the batch end while the first answer of the store's method ``name`` is on its way."""
    calls = 0

    async def delayed(store: SqliteStore, *args: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        answer = await read(store, *args, **options)  # type: ignore[misc]  # any method of the store
        if calls == 1:
            await coordinator.resume()
            async with asyncio.timeout(10):
                while (await coordinator.batch("b")).finished_at is None:
                    await asyncio.sleep(0.001)
        return answer

    monkeypatch.setattr(SqliteStore, name, delayed)


async def test_what_ends_while_the_store_is_read_ends_the_long_poll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The poll saw nothing, then everything ended before it began to wait: it looks again at once."""
    async with slow_batch(tmp_path) as coordinator:
        end_after_first(SqliteStore.finished, coordinator, monkeypatch, "finished")
        async with asyncio.timeout(10):
            page = await coordinator.trajectories("b", after=None, limit=10, wait_s=3600.0)

    assert (len(page.records), page.finished) == (1, True)


async def test_a_trajectory_that_ends_while_it_is_looked_up_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither stored at the first look nor open at the second: it is not unknown for that."""
    async with slow_batch(tmp_path) as coordinator:
        end_after_first(SqliteStore.trajectory, coordinator, monkeypatch, "trajectory")
        record = await coordinator.trajectory(TRAJECTORY)

        assert record == await coordinator._store.trajectory(TrajectoryId(TRAJECTORY))
        assert (await coordinator.explain(TRAJECTORY)).phase == "finished"


async def test_a_batch_between_journal_and_start_is_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks in that instant must not take it for finished."""
    job = Job()
    states: list[str] = []
    async with job.coordinator(tmp_path) as coordinator:
        add = SqliteStore.add_batch

        async def add_and_ask(store: SqliteStore, batch: object) -> bool:
            added = await add(store, batch)  # type: ignore[arg-type]  # passed on
            states.append((await coordinator.batch("b")).state)
            return added

        monkeypatch.setattr(SqliteStore, "add_batch", add_and_ask)
        await coordinator.submit(job.batch())
        await collect(coordinator, "b")
        states.append((await coordinator.batch("b")).state)

    assert states == ["running", "finished"]


async def test_a_batch_that_lacks_only_its_end_asks_nothing_of_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the last record and the mark: no prompt needs to be rendered again for that."""

    async def killed(store: SqliteStore, batch_id: str, at: float) -> None:
        return None

    with monkeypatch.context() as patch:
        patch.setattr(SqliteStore, "mark_finished", killed)
        await Job().run(tmp_path)
    async with Job(context_tokens=64).coordinator(tmp_path) as coordinator:
        status = await coordinator.batch("b")

    assert (status.state, status.finished) == ("finished", 1)
    assert status.finished_at is not None
