"""A trajectory that moves between two real engine processes while its tools run, against one that stays."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from heddle.api.schemas import BatchRequest
from heddle.app import open_coordinator
from heddle.config import parse_config
from heddle.control.ports import MoveMeans
from heddle.records import Trajectory, decode_trajectory
from moving_planner import offer_nomad

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

STEPS = [
    {"output_tokens": 24, "tool_seconds": 1.5},
    {"output_tokens": 24, "tool_seconds": 1.5},
    {"output_tokens": 16},
]
PROMPT_TOKENS = 90


async def run(data_dir: Path, migration: str) -> Trajectory:
    """Alone on two workers, at temperature 0."""
    config = parse_config(
        {
            "data_dir": data_dir,
            "engine": {"pool": "1+1", "slots": 1, "context_tokens": 512},
            "decisions": {"migration": migration},
        }
    )
    request = BatchRequest.model_validate(
        {
            "environment": "replay",
            "prompts": [{"task": {"steps": STEPS, "prompt_tokens": PROMPT_TOKENS}}],
            "sampling": {"temperature": 0.0},
        }
    )
    async with open_coordinator(config) as coordinator, asyncio.timeout(200):
        status, _ = await coordinator.submit(request)
        page = await coordinator.trajectories(status.batch_id, after=None, limit=10, wait_s=180.0)
    [record] = page.records
    return decode_trajectory(record)


async def test_a_moved_trajectory_is_the_one_that_it_would_have_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By transfer: the same tokens, its prefix cached at the target, and nobody waited for it."""
    offer_nomad(monkeypatch)
    stayed = await run(tmp_path / "stayed", "none")
    moved = await run(tmp_path / "moved", "nomad")

    assert moved.response_ids == stayed.response_ids
    assert moved.response_logprobs == pytest.approx(stayed.response_logprobs, abs=1e-4)
    workers = [step.worker_id for step in moved.steps]
    assert workers[0] == workers[2] != workers[1]
    for step, following in zip(moved.steps, moved.steps[1:], strict=False):
        move = step.migration
        assert move is not None
        assert (move.outcome, move.source, move.target) == ("moved", step.worker_id, following.worker_id)
        assert move.moved_tokens == step.prompt_tokens + step.output_tokens
        assert move.nbytes is not None
        assert move.nbytes > 20_000 * move.moved_tokens
        assert move.seconds < step.tool_calls[0].run_s
        assert following.cached_tokens == move.moved_tokens
    assert moved.timing.migration == 0.0
    assert moved.timing.parts == pytest.approx(moved.timing.wall, rel=0.01)


async def test_a_move_without_a_transfer_pays_for_the_prefix_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record says what it cost."""
    offer_nomad(monkeypatch, MoveMeans.RECOMPUTE)
    record = await run(tmp_path, "nomad")
    assert record.steps[0].worker_id != record.steps[1].worker_id
    assert record.steps[1].cached_tokens == 0
    assert record.steps[0].migration is None
    # The observation is computed for the first time; all before it for the second.
    again = record.steps[0].prompt_tokens + record.steps[0].output_tokens
    share = again / record.steps[1].prompt_tokens
    assert record.timing.migration >= share * record.steps[1].prefill_s * 0.99
    assert record.timing.parts == pytest.approx(record.timing.wall, rel=0.01)
