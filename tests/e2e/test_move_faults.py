"""Moves between two real engine processes when something goes wrong: nothing lost, doubled or stalled."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from moving_rig import Steps, all_ready, batch, configuration, moves, records_of

from heddle.app import open_coordinator
from heddle.config import HeddleConfig
from heddle.control.commands import Transfer
from heddle.control.events import TransferFailed, TransferFinished
from heddle.control.replay import replay
from heddle.coordinator.assembly import EngineKit
from heddle.coordinator.service import Coordinator
from heddle.engine_kits import engine_kit
from heddle.engines.embedded.launcher import EmbeddedLauncher
from heddle.engines.embedded.model import ensure_model
from heddle.eventlog import read_event_log
from heddle.records import Trajectory
from heddle.types import StopReason
from moving_planner import offer_nomad

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]

STEPS: Steps = [{"output_tokens": 20, "tool_seconds": 2.0}, {"output_tokens": 12}]
SAMPLED = 32


@pytest.fixture(autouse=True)
def _nomad(monkeypatch: pytest.MonkeyPatch) -> None:
    offer_nomad(monkeypatch)


@asynccontextmanager
async def running(config: HeddleConfig, kit: EngineKit | None = None) -> AsyncIterator[Coordinator]:
    """A coordinator with both workers ready."""
    async with open_coordinator(config, kit=kit) as coordinator:
        await all_ready(coordinator)
        yield coordinator


async def send(coordinator: Coordinator, worker_id: str, signum: signal.Signals) -> None:
    """To the engine's process."""
    [pid] = [worker.pid for worker in await coordinator.workers() if worker.worker_id == worker_id]
    assert pid is not None
    os.killpg(pid, signum)


async def until_copied(coordinator: Coordinator, trajectory_id: str) -> None:
    """The trajectory is in its tools, and its prefix on the way."""
    async with asyncio.timeout(60.0):
        while "is being copied" not in (await coordinator.explain(trajectory_id)).reason:
            await asyncio.sleep(0.02)


def assert_complete(records: list[Trajectory], count: int) -> None:
    """Every trajectory once, with the tokens that were recorded."""
    assert len({record.trajectory_id for record in records}) == len(records) == count
    for record in records:
        assert (record.stop_reason, record.failure) == (StopReason.COMPLETED, None)
        assert record.sampled_tokens == sum(record.response_mask) == SAMPLED
        assert [step.output_tokens for step in record.steps] == [20, 12]


def assert_log_is_sound(data_dir: Path) -> None:
    """Every order answered at most once, no worker in two transfers, and the log replays."""
    [path] = (data_dir / "events").iterdir()
    log = read_event_log(path)
    under_way: dict[str, Transfer] = {}
    for entry in log.entries:
        if isinstance(entry.event, TransferFinished | TransferFailed):
            del under_way[entry.event.trajectory_id]
        for order in entry.commands:
            if isinstance(order, Transfer):
                busy = {worker for other in under_way.values() for worker in (other.source, other.target)}
                assert busy.isdisjoint({order.source, order.target})
                under_way[order.trajectory_id] = order
    assert replay(log.settings, log.entries).equal


@pytest.mark.parametrize("victim", ["source", "target"])
async def test_an_end_that_is_killed_in_a_transfer_costs_no_trajectory(tmp_path: Path, victim: str) -> None:
    """It goes on where its KV is, or is computed again on the other worker."""
    config = configuration(tmp_path, migration="nomad")
    async with running(config) as coordinator:
        await send(coordinator, "w1", signal.SIGSTOP)  # so that the transfer is under way when an end dies
        status, _ = await coordinator.submit(batch(STEPS))
        await until_copied(coordinator, f"{status.batch_id}-g0-t0")
        await send(coordinator, "w0" if victim == "source" else "w1", signal.SIGKILL)
        if victim == "source":
            await send(coordinator, "w1", signal.SIGCONT)
        records = await records_of(coordinator, status.batch_id)
    assert_complete(records, 1)
    [record] = records
    assert record.steps[0].worker_id == "w0"
    assert [move.outcome for move in moves(record)] in (["withdrawn"], ["failed"])
    if victim == "target":
        assert record.steps[1].worker_id == "w0"
        assert record.steps[1].cached_tokens > 0, "the source kept what it had"
    assert_log_is_sound(tmp_path)


async def test_a_target_that_hangs_keeps_nobody_from_the_next_step(tmp_path: Path) -> None:
    """The tools return first: the trajectory goes on at its source at once."""
    config = configuration(tmp_path, migration="nomad")
    async with running(config) as coordinator:
        await send(coordinator, "w1", signal.SIGSTOP)
        status, _ = await coordinator.submit(batch(STEPS))
        [record] = records = await records_of(coordinator, status.batch_id)
        await send(coordinator, "w1", signal.SIGCONT)
    assert_complete(records, 1)
    assert [move.outcome for move in moves(record)] == ["withdrawn"]
    assert {step.worker_id for step in record.steps} == {"w0"}
    assert record.steps[1].queue_s < 0.5
    assert record.steps[1].cached_tokens > 0


async def test_a_transfer_ends_at_its_deadline(tmp_path: Path) -> None:
    """Although the engine does not let go; long before the tools return."""
    config = configuration(tmp_path, migration="nomad", transfer_deadline_s=0.5)
    steps: Steps = [{"output_tokens": 20, "tool_seconds": 5.0}, {"output_tokens": 12}]
    async with running(config) as coordinator:
        await send(coordinator, "w1", signal.SIGSTOP)
        status, _ = await coordinator.submit(batch(steps))
        [record] = records = await records_of(coordinator, status.batch_id)
        await send(coordinator, "w1", signal.SIGCONT)
    assert_complete(records, 1)
    [move] = moves(record)
    assert (move.outcome, move.detail) == ("failed", "not done after 0.5 s")
    assert 0.5 <= move.seconds < 4.0
    assert {step.worker_id for step in record.steps} == {"w0"}
    assert_log_is_sound(tmp_path)


async def test_moves_that_want_the_same_two_workers_take_turns(tmp_path: Path) -> None:
    """No engine takes part in two transfers, and whose turn does not come in time stays."""
    config = configuration(tmp_path, slots=2, migration="nomad")
    async with running(config) as coordinator:
        status, _ = await coordinator.submit(batch(STEPS, trajectories=4))
        records = await records_of(coordinator, status.batch_id)
    assert_complete(records, 4)
    outcomes = [move.outcome for record in records for move in moves(record)]
    assert "moved" in outcomes
    assert set(outcomes) <= {"moved", "withdrawn"}
    assert_log_is_sound(tmp_path)


async def test_where_transfers_have_no_memory_everybody_stays_at_home(tmp_path: Path) -> None:
    """The budget is smaller than one context: refused before a byte is written."""
    config = configuration(tmp_path, migration="nomad")
    model = await asyncio.to_thread(ensure_model, config.engine.model)
    launcher = EmbeddedLauncher(model, context_tokens=512, ready_timeout_s=120.0, transfer_mib=1)
    kit = replace(await engine_kit(config), launcher=launcher)
    async with running(config, kit) as coordinator:
        status, _ = await coordinator.submit(batch(STEPS, trajectories=2))
        records = await records_of(coordinator, status.batch_id)
    assert_complete(records, 2)
    for record in records:
        assert [move.outcome for move in moves(record)] == ["failed"]
        assert "exceed what transfers may take" in moves(record)[0].detail
        assert len({step.worker_id for step in record.steps}) == 1
    assert_log_is_sound(tmp_path)
