"""Playing a schedule, and the promises that hold after every one, whatever the engines are."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from chaos_world import Surroundings, World
from schedule import Schedule

from heddle.app import plane_settings
from heddle.control.log import decode_entry
from heddle.control.replay import replay
from heddle.records import FailureKind, Trajectory, decode_trajectory
from heddle.types import StopReason


def play(schedule: Schedule, around: Surroundings | None = None) -> World:
    """A run in an event loop of its own, which must be empty afterwards."""

    async def playing() -> World:
        world = World(schedule, Path(directory), around or Surroundings())
        await world.play()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks outlive their coordinator: {left}"
        return world

    with TemporaryDirectory(prefix="heddle-chaos-") as directory:
        return asyncio.run(playing())


def records_of(world: World) -> list[Trajectory]:
    """What the clients got, in the order of finishing."""
    return [decode_trajectory(record) for client in world.clients for record in client.records]


def check_once_each(world: World, records: list[Trajectory]) -> None:
    """No trajectory is lost or doubled, for the client and in the journal; no call either."""
    schedule = world.schedule
    expected = {f"b{b}-g{g}-t0" for b in range(schedule.batches) for g in range(schedule.prompts)}
    assert Counter(record.trajectory_id for record in records) == Counter(expected)
    assert world.store.stats.committed == len(expected)
    assert world.store.stats.late == world.store.stats.conflicting == 0
    assert max(Counter(world.tools.delivered).values(), default=0) <= 1


def check_failed(record: Trajectory) -> None:
    """An infrastructure's failure has no reward, and no gate had to find it."""
    assert record.failure is not None
    assert record.failure.kind is FailureKind.INFRA
    assert record.failure.stage != "gate", record.failure
    assert record.reward is None


def check_aborted(world: World, record: Trajectory) -> None:
    """Only what somebody cancelled."""
    assert record.stop_reason is StopReason.CANCELLED
    assert record.batch_id in world.cancelled


def check_released(world: World) -> None:
    """Nothing is held by anybody: slots, permits, engines, entries of the control plane."""
    last = world.lives[-1]
    assert last.gauges is not None
    assert (last.gauges.running, last.gauges.queued, last.gauges.strays) == (0, 0, 0)
    assert {(load.running, load.waiting) for load in last.loads} <= {(0, 0)}
    assert world.plant.left() == []
    last.plane.state.check_invariants()
    assert (last.plane.state.trajectories, last.plane.state.batches) == ({}, {})


def check_replays(world: World) -> None:
    """A fresh control plane that hears the same events gives the same commands."""
    settings = plane_settings(world.config)
    for life in world.lives:
        report = replay(settings, [decode_entry(line) for line in life.lines], check_every=0)
        assert report.difference is None
