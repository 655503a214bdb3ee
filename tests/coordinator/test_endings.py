"""Every way in which a trajectory ends, through the whole coordinator on a fake engine."""

from __future__ import annotations

from pathlib import Path

import pytest
from job_harness import Job, call_text

from heddle.engines.fake import FakeFaults
from heddle.records import Failure, FailureKind
from heddle.types import StopReason, TrajectoryStatus


async def test_a_final_text_completes(tmp_path: Path) -> None:
    """Two tool steps, then an answer in words."""
    record = await Job().run_one(tmp_path)

    assert (record.status, record.stop_reason) == (TrajectoryStatus.COMPLETED, StopReason.COMPLETED)
    assert [len(step.tool_calls) for step in record.steps] == [1, 1, 0]
    assert record.reward == 3.0


async def test_a_tool_may_end_the_task(tmp_path: Path) -> None:
    """The environment's word ends the trajectory; the call is recorded."""
    record = await Job(turn=lambda step: call_text("stop", "done")).run_one(tmp_path)

    assert (record.status, record.stop_reason) == (TrajectoryStatus.COMPLETED, StopReason.TOOL_STOPPED)
    assert record.steps[0].tool_calls[0].result == "done"


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"max_steps": 3}, StopReason.MAX_STEPS),
        ({"max_tokens": 100}, StopReason.MAX_TOKENS),
        ({"max_tool_calls": 2}, StopReason.MAX_TOOL_CALLS),
    ],
)
async def test_limits_truncate(tmp_path: Path, limits: dict[str, int], reason: StopReason) -> None:
    """A model that never stops by itself runs into the limit that comes first; what it did is valid."""
    job = Job(turn=lambda step: call_text("echo"), request={"limits": limits})
    record = await job.run_one(tmp_path)

    assert (record.status, record.stop_reason) == (TrajectoryStatus.TRUNCATED, reason)
    assert record.reward is not None
    assert record.sampled_tokens <= limits.get("max_tokens", 10_000)


async def test_the_token_budget_is_met_exactly(tmp_path: Path) -> None:
    """The last step gets what is left of the budget, to the token."""
    job = Job(turn=lambda step: call_text("echo"), request={"limits": {"max_tokens": 100}})
    record = await job.run_one(tmp_path)

    assert record.sampled_tokens == 100


async def test_a_full_context_truncates(tmp_path: Path) -> None:
    """The observation that no longer fits is not appended, and nothing was sent that did not fit."""
    job = Job(turn=lambda step: call_text("echo"), context_tokens=800, request={"limits": {"max_steps": 99}})
    record = await job.run_one(tmp_path)

    assert record.stop_reason is StopReason.CONTEXT_OVERFLOW
    assert len(record.prompt_ids) + len(record.response_ids) <= 800
    assert all(len(r.prompt_ids) + r.max_new_tokens <= 800 for r in job.sent)


async def test_a_step_that_was_cut_off_goes_on(tmp_path: Path) -> None:
    """The limit of one step is not the end of the trajectory: the model hears that it was cut off."""
    long = "x" * 50
    job = Job(
        turn=lambda step: long if step == 0 else "Short.",
        request={"limits": {"max_tokens_per_step": 20}},
    )
    record = await job.run_one(tmp_path)

    assert record.stop_reason is StopReason.COMPLETED
    assert [step.output_tokens for step in record.steps] == [20, 7]


async def test_invalid_calls_in_a_row_end_it(tmp_path: Path) -> None:
    """Malformed JSON and unknown tools count alike; the raw text is kept."""
    turns = ["<tool_call>\n{oops", call_text("nonsense"), "<tool_call>{}</tool_call>"]
    record = await Job(turn=lambda step: turns[step]).run_one(tmp_path)

    assert (record.status, record.stop_reason) == (TrajectoryStatus.TRUNCATED, StopReason.PARSE_ERROR)
    assert record.messages[1].content == turns[0]
    assert [c.outcome for s in record.steps for c in s.tool_calls] == ["invalid"]


async def test_a_valid_call_forgives_invalid_ones(tmp_path: Path) -> None:
    """Only calls *in a row* count."""
    turns = [call_text("nonsense"), call_text("nonsense"), call_text("echo")] * 2
    record = await Job(turn=lambda step: turns[step], request={"limits": {"max_steps": 6}}).run_one(tmp_path)

    assert record.stop_reason is StopReason.MAX_STEPS


async def test_the_wall_clock_ends_a_generation(tmp_path: Path) -> None:
    """What was sampled until then is valid and stays."""
    job = Job(token_delay_s=0.02, request={"limits": {"timeout_s": 0.5}})
    record = await job.run_one(tmp_path)

    assert (record.status, record.stop_reason) == (TrajectoryStatus.TRUNCATED, StopReason.TIMED_OUT)
    assert 0 < record.sampled_tokens == record.steps[-1].output_tokens
    assert record.failure is None


async def test_the_wall_clock_ends_a_tool(tmp_path: Path) -> None:
    """A tool that takes a minute does not hold a trajectory of half a second."""
    job = Job(turn=lambda step: call_text("slow"), request={"limits": {"timeout_s": 0.5}})
    record = await job.run_one(tmp_path)

    assert record.stop_reason is StopReason.TIMED_OUT


async def test_a_broken_backend_is_an_infra_failure_without_reward(tmp_path: Path) -> None:
    """An infrastructure failure is never a reward-zero sample."""
    record = await Job(turn=lambda step: call_text("broken")).run_one(tmp_path)

    assert (record.status, record.stop_reason) == (TrajectoryStatus.FAILED, StopReason.TOOL_FAILED)
    assert record.failure == Failure(FailureKind.INFRA, "tool", "no sandbox left")
    assert record.reward is None


async def test_an_environment_that_raises_is_a_data_failure(tmp_path: Path) -> None:
    """The user's bug fails this trajectory as data, names itself, and harms no other."""
    record = await Job(turn=lambda step: call_text("raise")).run_one(tmp_path)

    assert record.failure == Failure(FailureKind.DATA, "environment", "LookupError: a bug in the environment")
    assert record.reward is None


async def test_engines_that_always_fail_end_it(tmp_path: Path) -> None:
    """A step survives so many failures and no more; whatever it had sampled is kept."""
    faults = [FakeFaults(crash_after_tokens=3)] * 20
    job = Job(pool="1", faults=faults, engine={"max_interruptions": 1, "max_restarts": 20})
    record = await job.run_one(tmp_path)

    assert (record.status, record.stop_reason) == (TrajectoryStatus.FAILED, StopReason.ENGINE_FAILED)
    assert record.failure is not None
    assert record.failure.kind is FailureKind.INFRA
    assert record.reward is None
