"""What an environment does wrong fails its own trajectory, and slots never wait for slow endings."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from job_harness import Job, call_text, collect, turn_ids

from heddle.errors import ConfigError
from heddle.records import FailureKind
from heddle.types import StopReason, TrajectoryStatus


def rogue(**task: str) -> Job:
    """One trajectory of the environment that breaks its contract, beside a sound one."""
    prompts = [{"task": task, "environment": "rogue"}, {"task": {}}]
    return Job(request={"prompts": prompts})


@pytest.mark.parametrize(
    ("task", "stage"),
    [
        ({"step": "none"}, "environment"),
        ({"step": "surrogate"}, "environment"),
        ({"step": "failed"}, "environment"),
        ({"reward": "bare"}, "reward"),
        ({"reward": "nan"}, "reward"),
        ({"reward": "info"}, "reward"),
        ({"reward": "timeout"}, "reward"),
    ],
)
async def test_wrong_values_fail_one_trajectory(tmp_path: Path, task: dict[str, str], stage: str) -> None:
    """As data, naming the stage, without a reward; the one beside it is unharmed."""
    bad, good = await rogue(**task).run(tmp_path)

    assert (bad.status, bad.stop_reason) == (TrajectoryStatus.FAILED, StopReason.TOOL_FAILED)
    assert bad.failure is not None
    assert (bad.failure.kind, bad.failure.stage) == (FailureKind.DATA, stage)
    assert bad.reward is None
    assert good.status is TrajectoryStatus.COMPLETED


async def test_a_numpy_reward_is_welcome(tmp_path: Path) -> None:
    """Scalars of numpy become what JSON knows."""
    [record, _] = await rogue(reward="numpy").run(tmp_path)

    assert record.reward == 0.5


async def test_a_slow_reward_holds_no_slot(tmp_path: Path) -> None:
    """While one trajectory is judged for a minute, the only slot serves the others."""
    prompts = [{"task": {"reward": "slow"}, "environment": "rogue"}, *({"task": {}} for _ in range(3))]
    job = Job(pool="1", slots=1, request={"prompts": prompts})
    async with job.coordinator(tmp_path) as coordinator:
        await coordinator.submit(job.batch())
        async with asyncio.timeout(20):
            while (await coordinator.batch("b")).finished < 3:
                await asyncio.sleep(0.01)
        assert (await coordinator.batch("b")).by_phase == {"ending": 1}
        assert "reward" in (await coordinator.explain("b-g0-t0")).reason


async def test_cancelling_ends_a_slow_reward(tmp_path: Path) -> None:
    """A trajectory that is being judged ends as cancelled, at once and without a reward."""
    job = Job(request={"prompts": [{"task": {"reward": "slow"}, "environment": "rogue"}]})
    async with job.coordinator(tmp_path) as coordinator:
        await coordinator.submit(job.batch())
        async with asyncio.timeout(10):
            while (await coordinator.batch("b")).by_phase != {"ending": 1}:
                await asyncio.sleep(0.01)
        await coordinator.cancel("b")
        async with asyncio.timeout(2):
            [record] = await collect(coordinator, "b")

    assert (record.stop_reason, record.reward) == (StopReason.CANCELLED, None)


async def test_a_budget_spent_by_the_end_of_turn_is_max_tokens(tmp_path: Path) -> None:
    """The last token of the budget ends a turn that calls a tool: nothing is left to go on with."""
    budget = len(turn_ids(call_text("echo")))
    job = Job(turn=lambda step: call_text("echo"), request={"limits": {"max_tokens": budget}})
    record = await job.run_one(tmp_path)

    assert (record.stop_reason, record.sampled_tokens) == (StopReason.MAX_TOKENS, budget)
    assert len(record.steps[0].tool_calls) == 1


async def test_a_turn_with_too_many_calls_runs_none(tmp_path: Path) -> None:
    """The limit on tool calls is never exceeded, not even by one turn."""
    job = Job(turn=lambda step: call_text("echo") * 3, request={"limits": {"max_tool_calls": 5}})
    record = await job.run_one(tmp_path)

    assert record.stop_reason is StopReason.MAX_TOOL_CALLS
    assert [len(step.tool_calls) for step in record.steps] == [3, 0]


async def test_a_step_cut_short_in_its_tools_keeps_what_they_did(tmp_path: Path) -> None:
    """One call had answered when the time was up."""
    turn = call_text("nonsense") + call_text("slow")
    job = Job(turn=lambda step: turn, request={"limits": {"timeout_s": 0.5}})
    record = await job.run_one(tmp_path)

    assert record.stop_reason is StopReason.TIMED_OUT
    assert [call.outcome for call in record.steps[0].tool_calls] == ["invalid"]


async def test_the_wall_clock_goes_on_after_a_restart(tmp_path: Path) -> None:
    """What ran before counts; a trajectory does not get its whole time again."""
    limits = {"timeout_s": 1.5}
    job = Job(turn=lambda step: call_text("slow"), request={"limits": limits})
    async with job.coordinator(tmp_path) as coordinator:
        await coordinator.submit(job.batch())
        await asyncio.sleep(1.0)
    async with Job(turn=job.turn).coordinator(tmp_path) as coordinator:
        [record] = await collect(coordinator, "b")

    assert record.stop_reason is StopReason.TIMED_OUT
    assert record.timing.wall < 2.9


async def test_another_model_does_not_go_on(tmp_path: Path) -> None:
    """Tokens of two models never stand in one record."""
    job = Job(turn=lambda step: call_text("slow"))
    async with job.coordinator(tmp_path) as coordinator:
        await coordinator.submit(job.batch())
        async with asyncio.timeout(10):
            while (await coordinator.batch("b")).by_phase.get("in_tool") != 1:
                await asyncio.sleep(0.01)
    with pytest.raises(ConfigError, match="begun with model scripted"):
        async with Job(turn=job.turn, model="another").coordinator(tmp_path):
            pass
