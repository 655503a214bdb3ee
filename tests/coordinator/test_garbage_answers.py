"""Answers that cannot be true: the engine failed, whatever it says, and nothing of them is kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from job_harness import Job, collect
from lying_engine import Lie, LyingLauncher

from heddle.agent.ports import Generation, TokenChunk
from heddle.app import open_coordinator
from heddle.records import FailureKind, Trajectory
from heddle.types import StopReason


def first_id(token_id: int) -> Callable[[TokenChunk], TokenChunk]:
    """Another id in the place of the first one."""
    return lambda chunk: replace(chunk, token_ids=[token_id, *chunk.token_ids[1:]])


def without_logprobs(chunk: TokenChunk) -> TokenChunk:
    return replace(chunk, logprobs=[])


def nothing(chunk: TokenChunk) -> TokenChunk:
    return TokenChunk([], [])


def endless(chunk: TokenChunk) -> TokenChunk:
    return TokenChunk([*chunk.token_ids] * 100, [*chunk.logprobs] * 100)


def versions_of_two(generation: Generation, number: int) -> Generation:
    """Weight versions for other tokens than there are."""
    return replace(generation, weight_versions=[0, 0])


def half_told(generation: Generation, number: int) -> Generation:
    return replace(generation, token_ids=[*generation.token_ids, 1], logprobs=[*generation.logprobs, -1.0])


async def run(lie: Lie, data_dir: Path, **engine: object) -> Trajectory:
    """The record of a trajectory on lying engines."""
    job = Job(turn=lambda step: "The end.", request={"limits": {"max_tokens_per_step": 64}}, engine=engine)
    kit = replace(job.kit(), launcher=LyingLauncher(job.launcher(), lie))
    async with open_coordinator(job.config(data_dir), kit=kit) as coordinator:
        await coordinator.submit(job.batch())
        [record] = await collect(coordinator, "b")
        return record


@pytest.mark.parametrize(
    ("lie", "named"),
    [
        (Lie(tokens=first_id(-1)), "sent a token id that no vocabulary has"),
        (Lie(tokens=first_id(2**31)), "sent a token id that no vocabulary has"),
        (Lie(tokens=without_logprobs), "sent 9 tokens with 0 logprobs"),
        (Lie(tokens=nothing), "sampled nothing"),
        (Lie(tokens=endless), "sampled 900 tokens where 64 were asked for"),
        (Lie(generation=half_told), "streamed 9 tokens of 10"),
        (Lie(generation=versions_of_two), "named 2 weight versions of 9 tokens"),
    ],
)
async def test_a_garbage_answer_is_an_engine_failure_by_name(lie: Lie, named: str, tmp_path: Path) -> None:
    """Retries are bounded; the record says what the engine did and keeps nothing of the answer."""
    record = await run(lie, tmp_path, max_interruptions=2)
    assert record.stop_reason is StopReason.ENGINE_FAILED
    assert record.failure is not None
    assert record.failure.kind is FailureKind.INFRA
    assert named in record.failure.message
    assert "failed on 3 engines" in record.failure.message
    assert record.reward is None


@pytest.mark.parametrize("garbage", [first_id(-7), without_logprobs, nothing, endless])
async def test_one_garbage_answer_costs_one_retry_and_leaves_no_trace(
    garbage: Callable[[TokenChunk], TokenChunk], tmp_path: Path
) -> None:
    """The next segment starts where the step stood before."""
    answers = 0

    def once(chunk: TokenChunk) -> TokenChunk:
        nonlocal answers
        answers += 1
        return garbage(chunk) if answers == 1 else chunk

    record = await run(Lie(tokens=once), tmp_path)
    clean = await run(Lie(), tmp_path / "clean")
    assert record.failure is None
    assert record.steps[0].segments == 2
    assert (record.response_ids, record.response_logprobs) == (clean.response_ids, clean.response_logprobs)
