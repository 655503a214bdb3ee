"""The first batch waits for the planners' machine code, and only that: the event loop does not."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from job_harness import Job, collect

from heddle import app
from heddle.errors import NotFound


async def test_the_first_batch_waits_for_the_planners_and_nothing_else_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def load() -> None:
        asked.set()
        assert threading.current_thread() is not threading.main_thread()
        assert may_end.wait(60)
        ended.set()

    monkeypatch.setattr(app, "kernel_loader", lambda settings: load)
    job = Job()
    async with asyncio.timeout(60), job.coordinator(tmp_path) as coordinator:
        submission = asyncio.create_task(coordinator.submit(job.batch()))
        while not (asked.is_set() and await coordinator.ready()):
            await asyncio.sleep(0.001)
        for _ in range(50):  # turns of a loop that is not held up
            await asyncio.sleep(0)
            with pytest.raises(NotFound):
                await coordinator.batch("b")
        assert not submission.done()
        assert not job.sent
        may_end.set()
        await submission
        assert ended.is_set()
        [record] = await collect(coordinator, "b")
    assert record.reward == 3.0


async def test_open_batches_of_an_earlier_process_wait_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(token_delay_s=60.0)
    async with job.coordinator(tmp_path) as coordinator:
        await coordinator.submit(job.batch())

    ended = threading.Event()
    monkeypatch.setattr(app, "kernel_loader", lambda settings: ended.set)
    again = Job()
    async with asyncio.timeout(60), again.coordinator(tmp_path) as coordinator:
        assert ended.is_set()
        [record] = await collect(coordinator, "b")
    assert record.reward == 3.0
