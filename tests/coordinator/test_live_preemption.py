"""Preemption through the whole coordinator: slots, records, timings and the event log, on a fake engine."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import pytest
from job_harness import Job, collect

from heddle.app import plane_settings
from heddle.control.commands import Preempt
from heddle.control.events import BatchSubmitted
from heddle.control.replay import replay
from heddle.coordinator.service import Coordinator
from heddle.errors import InvalidRequest
from heddle.eventlog import read_event_log
from heddle.records import Trajectory
from heddle.types import FinishReason, StopReason

Steps: TypeAlias = Sequence[dict[str, float]]

LONG: Steps = [{"output_tokens": 5, "tool_seconds": 0.5}, {"output_tokens": 150}]
SHORT: Steps = [{"output_tokens": 100}]


def make_job(scheduler: str, tasks: Sequence[Steps] = (LONG, SHORT)) -> Job:
    """One slot. The long one goes first and comes back from its tool while the short one generates."""
    return Job(
        pool="1",
        slots=1,
        token_delay_s=0.01,
        decisions={"scheduler": scheduler, "predictor": "oracle"},
        request={
            "environment": "replay",
            "prompts": [{"task": {"steps": list(steps)}} for steps in tasks],
        },
    )


async def test_a_longer_one_takes_the_slot_and_the_victim_loses_no_token(tmp_path: Path) -> None:
    """The victim's step is one logical generation, the same as undisturbed, with its time accounted for."""
    undisturbed = await make_job("fcfs").run(tmp_path / "fcfs")
    [long, short] = await make_job("progressive").run(tmp_path / "progressive")

    [step] = short.steps
    assert (step.preemptions, step.segments, step.finish_reason) == (1, 2, FinishReason.LENGTH)
    assert [s.preemptions for s in long.steps] == [0, 0]
    assert [r.response_ids for r in undisturbed] == [long.response_ids, short.response_ids]
    assert (step.output_tokens, short.sampled_tokens) == (100, 100)
    assert all(math.isfinite(p) and p < 0.0 for p in short.response_logprobs)
    assert short.timing.preemption > 0.5
    assert step.queue_s == pytest.approx(short.timing.queue + short.timing.preemption, abs=0.2)
    assert short.timing.parts == pytest.approx(short.timing.wall, rel=0.01)
    assert long.timing.queue < undisturbed[0].timing.queue


async def test_the_event_log_of_a_preemption_replays(tmp_path: Path) -> None:
    """The order to preempt and what became of it are in the log, byte for byte reproducible."""
    job = make_job("progressive")
    await job.run(tmp_path)

    [path] = (tmp_path / "events").iterdir()
    log = read_event_log(path)
    entries = list(log.entries)
    orders = [c for entry in entries for c in entry.commands if isinstance(c, Preempt)]
    assert [c.trajectory_id for c in orders] == ["b-g1-t0"]
    assert log.settings == plane_settings(job.config(tmp_path))
    report = replay(log.settings, entries)
    assert (report.equal, report.open_trajectories) == (True, 0)


async def test_a_preempted_trajectory_can_be_cancelled(tmp_path: Path) -> None:
    """While it waits for its second grant it ends at once and keeps what it has sampled."""
    async with make_job("progressive").coordinator(tmp_path) as coordinator:
        await coordinator.submit(make_job("progressive").batch())
        async with asyncio.timeout(20):
            while not await _waits_preempted(coordinator, "b-g1-t0"):
                await asyncio.sleep(0.01)
        await coordinator.cancel("b")
        records = await collect(coordinator, "b")

    short = records[1]
    assert short.stop_reason is StopReason.CANCELLED
    assert 0 < short.sampled_tokens < 100
    assert short.steps[0].preemptions == 1
    assert len(short.response_ids) == len(short.response_logprobs)


async def _waits_preempted(coordinator: Coordinator, trajectory_id: str) -> bool:
    return "preempted, " in (await coordinator.explain(trajectory_id)).reason


async def test_forced_lengths_and_tool_times_are_kept(tmp_path: Path) -> None:
    """A replay samples what was recorded, to the token, and waits for as long."""
    steps = [{"output_tokens": n, "tool_seconds": 0.1} for n in (3, 70, 1)]
    [record] = await make_job("fcfs", [steps]).run(tmp_path)

    assert [step.output_tokens for step in record.steps] == [3, 70, 1]
    assert all(step.constrained for step in record.steps)
    assert [len(step.tool_calls) for step in record.steps] == [1, 1, 0]
    assert record.timing.tool_run == pytest.approx(0.2, abs=0.1)
    assert record.stop_reason is StopReason.COMPLETED
    assert first_prediction(record) == 74.0


def first_prediction(record: Trajectory) -> float:
    """What was expected before its first step."""
    return record.predictions[0].predicted_total_tokens


@pytest.mark.parametrize("field", ["max_steps", "max_tokens"])
async def test_a_replay_beyond_the_limits_is_refused(tmp_path: Path, field: str) -> None:
    """A recording that could not be replayed in full is no half replay."""
    job = make_job("fcfs", [[{"output_tokens": 9}] * 3])
    async with job.coordinator(tmp_path) as coordinator:
        with pytest.raises(InvalidRequest, match=r"prompts\[0\] replays") as refused:
            await coordinator.submit(job.batch(limits={field: 2}))
    assert refused.value.path == f"limits.{field}"


async def test_weight_and_deadline_of_a_batch_reach_the_control_plane(tmp_path: Path) -> None:
    """The deadline as what is left of it when the trajectories enter."""
    job = make_job("fcfs", [[{"output_tokens": 1}]])
    job.request["priority"] = {"weight": 2.5, "deadline_s": 60.0}
    await job.run(tmp_path)

    [path] = (tmp_path / "events").iterdir()
    [submitted] = [e.event for e in read_event_log(path).entries if isinstance(e.event, BatchSubmitted)]
    assert submitted.weight == 2.5
    assert submitted.deadline_s == pytest.approx(60.0, abs=5.0)
    assert submitted.trajectories[0].known_total_tokens == 1
