"""One pool becomes another: as few starts as possible, nothing lost, nothing shared that must not be."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from job_harness import Job, collect

from heddle.allocation import SlotRule
from heddle.api.schemas import PoolRequest
from heddle.coordinator.provision import Capacity, plan_change
from heddle.coordinator.service import Coordinator
from heddle.errors import Conflict, InvalidRequest
from heddle.types import WorkerId, WorkerPhase

GPUS = Capacity(8, SlotRule(4), exclusive=True)


@dataclass(frozen=True)
class Worker:
    """One of a pool."""

    worker_id: WorkerId
    tp_degree: int
    phase: WorkerPhase = WorkerPhase.READY


def workers(*degrees: int) -> list[Worker]:
    """Ready workers of these degrees."""
    return [Worker(WorkerId(f"w{number}"), degree) for number, degree in enumerate(degrees)]


degrees = st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=8).filter(lambda d: sum(d) <= 8)


@given(before=degrees, after=degrees)
def test_what_fits_stays(before: list[int], after: list[int]) -> None:
    """The pool is then as it was asked for, and no worker leaves for another of its degree."""
    present = workers(*before)
    change = plan_change(present, "+".join(map(str, after)), GPUS)
    leaving = [worker.tp_degree for worker in present if worker.worker_id in change.drain]
    coming = [spec.tp_degree for spec in change.add]
    assert Counter(before) - Counter(leaving) + Counter(coming) == Counter(after)
    assert not set(leaving) & set(coming)


def test_a_worker_that_is_down_is_replaced_and_one_that_leaves_is_left_alone() -> None:
    """It may be down for good; and what drains is no part of the pool any more."""
    down = Worker(WorkerId("w0"), 2, WorkerPhase.DOWN)
    leaving = Worker(WorkerId("w1"), 2, WorkerPhase.DRAINING)
    change = plan_change([down, leaving], "2", GPUS)
    assert [spec.tp_degree for spec in change.add] == [2]
    assert change.drain == (WorkerId("w0"),)


def test_a_worker_that_is_ready_stays_rather_than_one_that_starts() -> None:
    """It has prefixes."""
    starting = Worker(WorkerId("w0"), 1, WorkerPhase.STARTING)
    ready = Worker(WorkerId("w1"), 1)
    assert plan_change([starting, ready], "1", GPUS).drain == (WorkerId("w0"),)


@pytest.mark.parametrize("pool", ["8+1", "1+1+1+1+1+1+1+1+1", "many", "0"])
def test_a_pool_that_does_not_fit_is_refused_by_its_field(pool: str) -> None:
    """Also of workers of one GPU each: they do not share."""
    with pytest.raises(InvalidRequest) as refused:
        plan_change(workers(1), pool, GPUS)
    assert refused.value.path == "pool"


def test_one_more_worker_needs_units_that_nobody_holds() -> None:
    """Those of a worker that drains are as good as free, and a CPU is shared."""
    draining = Worker(WorkerId("w1"), 4, WorkerPhase.DRAINING)
    GPUS.check_room([*workers(4), draining], 4)
    with pytest.raises(Conflict, match="8 of 8 units are taken"):
        GPUS.check_room(workers(4, 4), 1)
    Capacity(2, SlotRule(4)).check_room(workers(1, 1), 1)


def test_a_worker_of_more_units_than_there_are_is_refused() -> None:
    """Accepted, it would be down for good a moment later, and the caller would not learn why."""
    with pytest.raises(InvalidRequest, match="64 units are more than the 2 there are") as caught:
        Capacity(2, SlotRule(4)).check_room([], 64)
    assert caught.value.path == "tp_degree"


async def test_a_running_batch_survives_the_change_of_its_pool(tmp_path: Path) -> None:
    """Every trajectory ends as it would have; later steps run on the new workers."""
    job = Job(
        pool="1+1",
        token_delay_s=0.002,
        request={
            "environment": "replay",
            "prompts": [{"task": {"steps": [{"output_tokens": 60}] * 3}}] * 6,
        },
    )
    async with job.coordinator(tmp_path) as coordinator:
        await _until(coordinator, 2)
        await coordinator.submit(job.batch())
        await asyncio.sleep(0.05)
        changed = await coordinator.change_pool(PoolRequest(pool="2"))
        assert {(worker.worker_id, worker.tp_degree) for worker in changed} == {
            ("w0", 1),
            ("w1", 1),
            ("w2", 2),
        }
        records = await collect(coordinator, "b")
        async with asyncio.timeout(10):
            while [worker.worker_id for worker in await coordinator.workers()] != ["w2"]:
                await asyncio.sleep(0.01)
    assert [record.sampled_tokens for record in records] == [180] * 6
    assert {record.steps[-1].worker_id for record in records} == {"w2"}


async def _until(coordinator: Coordinator, ready: int) -> None:
    """So many workers are ready."""
    async with asyncio.timeout(10):
        while [worker.phase for worker in await coordinator.workers()].count("ready") < ready:
            await asyncio.sleep(0.01)
