"""A preempted and resumed generation on the real engine, against undisturbed ones."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest

from heddle.api.schemas import BatchRequest
from heddle.app import open_coordinator
from heddle.config import parse_config
from heddle.records import Trajectory, decode_trajectory

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

LONG = [{"output_tokens": 5, "tool_seconds": 0.8}, {"output_tokens": 160}]
SHORT = [{"output_tokens": 120}]
"""Takes the only slot while the long one is in its tool, and has to give it back."""


async def run(data_dir: Path, scheduler: str) -> list[Trajectory]:
    """Both at temperature 0 on one worker with one slot; records in the order of their ids."""
    config = parse_config(
        {
            "data_dir": data_dir,
            "engine": {"pool": "1", "slots": 1, "context_tokens": 512},
            "decisions": {"scheduler": scheduler, "predictor": "oracle"},
        }
    )
    request = BatchRequest.model_validate(
        {
            "environment": "replay",
            "prompts": [{"task": {"steps": LONG}}, {"task": {"steps": SHORT}}],
            "sampling": {"temperature": 0.0},
        }
    )
    async with open_coordinator(config) as coordinator, asyncio.timeout(200):
        status, _ = await coordinator.submit(request)
        records: list[Trajectory] = []
        cursor = None
        while len(records) < status.total:
            page = await coordinator.trajectories(status.batch_id, after=cursor, limit=10, wait_s=10.0)
            records += [decode_trajectory(record) for record in page.records]
            cursor = page.cursor
    return sorted(records, key=lambda record: record.trajectory_id)


def agreement(one: Trajectory, other: Trajectory) -> int:
    """Tokens before the first difference."""
    pairs = enumerate(zip(one.response_ids, other.response_ids, strict=True))
    return next((index for index, (a, b) in pairs if a != b), len(one.response_ids))


async def test_a_preempted_generation_is_the_one_it_would_have_been(tmp_path: Path) -> None:
    """It differs from an undisturbed one no sooner than two undisturbed ones differ, and lacks no logprob."""
    first = await run(tmp_path / "first", "fcfs")
    again = await run(tmp_path / "again", "fcfs")
    preempted = await run(tmp_path / "preempted", "progressive")

    short = preempted[1]
    assert (short.steps[0].preemptions, short.steps[0].segments) == (1, 2)
    assert [record.sampled_tokens for record in preempted] == [165, 120]
    reproducible = agreement(first[1], again[1])
    assert agreement(first[1], short) >= reproducible > 0
    same = range(reproducible)
    assert [short.response_logprobs[i] for i in same] == pytest.approx(
        [first[1].response_logprobs[i] for i in same], abs=0.05
    )
    assert all(math.isfinite(p) and p <= 0.0 for p in short.response_logprobs)
    # All but the last token of what it had was still in the cache.
    assert short.steps[0].cached_tokens >= short.steps[0].prompt_tokens
    assert short.timing.preemption > 0.0
    assert short.timing.parts == pytest.approx(short.timing.wall, rel=0.01)
