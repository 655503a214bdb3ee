"""A trajectory that moves between two real engine processes while its tools run, against one that stays."""

from __future__ import annotations

from pathlib import Path

import pytest
from moving_rig import Steps, batch, configuration, records_of

from heddle.app import open_coordinator
from heddle.control.ports import MoveMeans
from heddle.records import Trajectory
from moving_planner import offer_nomad

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

STEPS: Steps = [
    {"output_tokens": 24, "tool_seconds": 1.5},
    {"output_tokens": 24, "tool_seconds": 1.5},
    {"output_tokens": 16},
]


async def run(data_dir: Path, migration: str) -> Trajectory:
    """Alone on two workers."""
    async with open_coordinator(configuration(data_dir, migration=migration)) as coordinator:
        status, _ = await coordinator.submit(batch(STEPS))
        [record] = await records_of(coordinator, status.batch_id)
    return record


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
