"""The wall clock of a batch: when it is over, nothing of the batch runs, and what was open says so."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import orjson
import pytest
from job_harness import Job, call_text, collect

from heddle.api.schemas import BatchRequest
from heddle.coordinator.service import Coordinator
from heddle.errors import Conflict
from heddle.records import Trajectory
from heddle.store.ports import StoredBatch
from heddle.store.sqlite import open_store
from heddle.types import BatchId, StopReason, TrajectoryStatus

LIMIT_S = 0.3
ENDS_WITHIN_S = 5.0
"""On a busy machine; nothing waits for anything."""

IN_TOOLS = Job(turn=lambda step: call_text("slow"))
GENERATING = Job(token_delay_s=1.0, engine={"token_deadline_s": 60.0})
QUEUED = Job(turn=lambda step: "x" * 500, pool="1", slots=1, token_delay_s=0.05)


async def run_out(coordinator: Coordinator, job: Job, **fields: object) -> tuple[list[Trajectory], float]:
    """The records, and how long the batch took."""
    began = time.monotonic()
    await coordinator.submit(job.batch(samples_per_prompt=6, **fields))
    records = await collect(coordinator, "b")
    return records, time.monotonic() - began


def check_timed_out(records: list[Trajectory]) -> None:
    """Truncated as data: no failure, and nobody judged what was cut off."""
    assert len(records) == 6
    for record in records:
        assert (record.status, record.stop_reason) == (TrajectoryStatus.TRUNCATED, StopReason.TIMED_OUT)
        assert (record.failure, record.reward) == (None, None)


@pytest.mark.parametrize("job", [IN_TOOLS, GENERATING, QUEUED], ids=["in tools", "generating", "queued"])
async def test_everything_ends_wherever_it_stands(job: Job, tmp_path: Path) -> None:
    """No slot, no permit, no task is left of it."""
    async with job.coordinator(tmp_path) as coordinator:
        records, took_s = await run_out(coordinator, job, batch_timeout_s=LIMIT_S)
        check_timed_out(records)
        assert LIMIT_S <= took_s < LIMIT_S + ENDS_WITHIN_S
        workers = await coordinator.workers()
        assert sum(worker.running + worker.waiting + worker.resident for worker in workers) == 0
        assert (await coordinator.batch("b")).state == "finished"


async def test_the_configuration_bounds_batches_that_bring_no_bound(tmp_path: Path) -> None:
    """A batch's own goes before it."""
    job = Job(turn=IN_TOOLS.turn, rollouts={"batch_timeout_s": LIMIT_S})
    async with job.coordinator(tmp_path) as coordinator:
        check_timed_out((await run_out(coordinator, job))[0])
        status, _ = await coordinator.submit(job.batch(batch_id="c", batch_timeout_s=600.0))
        await asyncio.sleep(2 * LIMIT_S)
        assert (await coordinator.batch(status.batch_id)).state == "running"


async def test_a_batch_that_is_done_in_time_never_hears_of_it(tmp_path: Path) -> None:
    """Nor does one of the same name later."""
    job = Job()
    async with job.coordinator(tmp_path) as coordinator:
        records, _ = await run_out(coordinator, job, batch_timeout_s=60.0)
        assert {record.status for record in records} == {TrajectoryStatus.COMPLETED}


async def test_the_clock_runs_on_while_the_coordinator_is_down(tmp_path: Path) -> None:
    """Seconds are counted from the submission, not from the restart."""
    async with IN_TOOLS.coordinator(tmp_path) as coordinator:
        await coordinator.submit(IN_TOOLS.batch(samples_per_prompt=6, batch_timeout_s=1.0))
    await asyncio.sleep(1.0)
    began = time.monotonic()
    async with IN_TOOLS.coordinator(tmp_path) as coordinator:
        check_timed_out(await collect(coordinator, "b"))
    assert time.monotonic() - began < ENDS_WITHIN_S


async def test_a_batch_of_an_older_heddle_is_still_the_same_batch(tmp_path: Path) -> None:
    """A request that was stored before there was such a field does not contradict one that leaves it out."""
    job = Job()
    old = job.batch().model_dump(mode="json", exclude={"batch_timeout_s"})
    stored = StoredBatch(BatchId("b"), orjson.dumps(old), 1, time.time(), cancelled=False, finished_at=None)
    async with open_store(tmp_path / "heddle.db") as store:
        await store.add_batch(stored)
    async with job.coordinator(tmp_path) as coordinator:
        _, created = await coordinator.submit(job.batch())
        assert not created
        with pytest.raises(Conflict):
            await coordinator.submit(BatchRequest.model_validate(old | {"batch_timeout_s": 5.0}))
        assert len(await collect(coordinator, "b")) == 1
