"""Trajectories that move while their tools run, through a whole coordinator on fake engines."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path

import pytest
from job_harness import Job, collect

from heddle.app import open_coordinator, plane_settings
from heddle.control.commands import Transfer
from heddle.control.events import TransferFailed, TransferFinished
from heddle.control.replay import replay
from heddle.coordinator import housekeeping
from heddle.engines.fake import FakeLauncher
from heddle.eventlog import EventLog, read_event_log
from heddle.metrics import Metrics
from heddle.records import MoveRecord, Trajectory
from heddle.types import TrajectoryStatus
from moving_planner import offer_nomad

STEPS = [{"output_tokens": 20, "tool_seconds": 0.15}] * 3 + [{"output_tokens": 10}]


@pytest.fixture(autouse=True)
def _nomad(monkeypatch: pytest.MonkeyPatch) -> None:
    offer_nomad(monkeypatch)


def make_job(
    *, migration: str = "nomad", transfer_delay_s: float = 0.01, pool: str = "1+1", trajectories: int = 1
) -> Job:
    """Recorded lengths and tool times; every tool call is an occasion to move."""
    return Job(
        pool=pool,
        transfer_delay_s=transfer_delay_s,
        decisions={"migration": migration},
        request={"environment": "replay", "prompts": [{"task": {"steps": STEPS}}] * trajectories},
    )


def moves(record: Trajectory) -> list[MoveRecord | None]:
    return [step.migration for step in record.steps]


def outcomes(record: Trajectory) -> list[str]:
    return [move.outcome for move in moves(record) if move is not None]


def event_log(data_dir: Path) -> EventLog:
    [path] = (data_dir / "events").iterdir()
    return read_event_log(path)


async def test_a_trajectory_moves_at_every_tool_call_and_stays_itself(tmp_path: Path) -> None:
    """The same tokens as one that stays, each step on the next worker, its prefix cached there."""
    stayed = await make_job(migration="none").run_one(tmp_path / "stayed")
    moved = await make_job().run_one(tmp_path / "moved")

    assert moved.response_ids == stayed.response_ids
    assert moved.response_logprobs == stayed.response_logprobs
    assert moves(stayed) == [None] * 4
    assert outcomes(moved) == ["moved"] * 3
    assert moved.steps[-1].migration is None
    workers = [step.worker_id for step in moved.steps]
    for step, following in zip(moved.steps, moved.steps[1:], strict=False):
        assert step.migration is not None
        assert (step.migration.source, step.migration.target) == (step.worker_id, following.worker_id)
        assert following.cached_tokens >= step.migration.moved_tokens > 0
        assert 0.0 < step.migration.seconds < 0.15
    assert workers[0] == workers[2] != workers[1] == workers[3]
    assert moved.timing.migration == 0.0, "all of it was hidden by the tools"
    assert moved.timing.parts == pytest.approx(moved.timing.wall, rel=0.01)
    log = event_log(tmp_path / "moved")
    assert replay(log.settings, log.entries).equal


async def test_moves_and_the_speed_of_transfers_are_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the engine is known for is where the estimate begins; what was configured outranks it."""
    monkeypatch.setattr(housekeeping, "TICK_S", 0.01)
    job, metrics = make_job(), Metrics()
    kit = replace(job.kit(), transfer_tokens_per_s=7e5)
    config = job.config(tmp_path)
    async with open_coordinator(config, metrics, kit=kit) as coordinator:
        status, _ = await coordinator.submit(job.batch())
        await collect(coordinator, status.batch_id)
        await asyncio.sleep(0.1)
    shown = metrics.render().decode()
    assert 'heddle_moves_total{outcome="moved"} 3.0' in shown
    [rate] = re.findall(r"^heddle_transfer_tokens_per_second (.+)$", shown, re.MULTILINE)
    assert 0.0 < float(rate) < 7e5, "three transfers of 10 ms were slower than that"
    assert event_log(tmp_path).settings.transfer_tokens_per_s == 7e5
    configured = config.decisions.model_copy(update={"transfer_tokens_per_s": 3.0})
    settings = plane_settings(config.model_copy(update={"decisions": configured}), None, 7e5)
    assert settings.transfer_tokens_per_s == 3.0


async def test_tools_that_return_first_find_the_trajectory_at_home(tmp_path: Path) -> None:
    """It does not wait: the transfers would take minutes."""
    record = await make_job(transfer_delay_s=100.0).run_one(tmp_path)
    assert outcomes(record) == ["withdrawn"] * 3
    assert len({step.worker_id for step in record.steps}) == 1
    assert record.status is TrajectoryStatus.COMPLETED
    assert record.timing.wall < 20.0


async def test_many_move_at_once_and_each_order_is_answered_once(tmp_path: Path) -> None:
    """Between three workers: nothing lost, nothing doubled, no worker in two transfers."""
    job = make_job(pool="1+1+1", trajectories=12, transfer_delay_s=0.02)
    records = await job.run(tmp_path)
    assert [record.status for record in records] == [TrajectoryStatus.COMPLETED] * 12
    stayed = await make_job(migration="none", trajectories=12).run(tmp_path / "stayed")
    assert [record.response_ids for record in records] == [record.response_ids for record in stayed]
    assert "moved" in {outcome for record in records for outcome in outcomes(record)}
    busy: set[str] = set()
    under_way: dict[str, Transfer] = {}
    for entry in event_log(tmp_path).entries:
        if isinstance(entry.event, TransferFinished | TransferFailed):
            order = under_way.pop(entry.event.trajectory_id)
            busy -= {order.source, order.target}
        for command in entry.commands:
            if isinstance(command, Transfer):
                assert busy.isdisjoint({command.source, command.target})
                busy |= {command.source, command.target}
                under_way[command.trajectory_id] = command
    assert under_way == {}


@pytest.mark.parametrize("victim", ["source", "target"])
async def test_an_end_that_dies_in_a_transfer_costs_no_trajectory(tmp_path: Path, victim: str) -> None:
    """It goes on at the other end, with what it had."""
    job = make_job(transfer_delay_s=100.0)
    kit = job.kit()
    assert isinstance(kit.launcher, FakeLauncher)
    async with open_coordinator(job.config(tmp_path), kit=kit) as coordinator:
        status, _ = await coordinator.submit(job.batch())
        async with asyncio.timeout(10):
            while not any(worker.engine.transfers for worker in kit.launcher.launched):
                await asyncio.sleep(0.001)
        source, target = sorted(kit.launcher.launched, key=lambda worker: -worker.engine.transfers)
        (source if victim == "source" else target).engine.crash("died in a transfer")
        [record] = await collect(coordinator, status.batch_id)
    stayed = await make_job(migration="none").run_one(tmp_path / "stayed")
    assert record.status is TrajectoryStatus.COMPLETED
    assert record.response_ids == stayed.response_ids
    assert outcomes(record)[0] == "withdrawn"
