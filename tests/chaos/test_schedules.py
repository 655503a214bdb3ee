"""A thousand schedules of faults, and after each of them the same promises.

A failure names its seed: ``check(play(draw(seed)))`` plays it alone.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from chaos_world import World, hurry
from crash_rig import unresolved_calls
from schedule import Schedule, draw

from heddle.app import plane_settings
from heddle.control.log import decode_entry
from heddle.control.replay import replay
from heddle.records import FailureKind, Trajectory, decode_trajectory
from heddle.types import StopReason, TrajectoryStatus

SCHEDULES = 1000
PARTS = 10
MOST_PROMPTS = 5


@pytest.fixture(autouse=True)
def quickly() -> Iterator[None]:
    with hurry():
        yield


@cache
def undisturbed() -> Mapping[str, Trajectory]:
    """What each prompt comes to where nothing happens, by prompt."""
    calm = Schedule(0, 1, 2, 1, MOST_PROMPTS, "fcfs", ())
    world = play(calm)
    return {record.prompt_id: record for record in records_of(world)}


def play(schedule: Schedule) -> World:
    """A run in an event loop of its own, which must be empty afterwards."""

    async def playing() -> World:
        world = World(schedule, Path(directory))
        await world.play()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks outlive their coordinator: {left}"
        return world

    with TemporaryDirectory(prefix="heddle-chaos-") as directory:
        return asyncio.run(playing())


def records_of(world: World) -> list[Trajectory]:
    """What the clients got, in the order of finishing."""
    return [decode_trajectory(record) for client in world.clients for record in client.records]


@pytest.mark.parametrize("part", range(PARTS))
def test_every_promise_holds_after_every_schedule(part: int) -> None:
    """Whatever befell it."""
    for seed in range(part, SCHEDULES, PARTS):
        try:
            check(play(draw(seed)))
        except Exception as exc:
            raise AssertionError(f"seed {seed}: {draw(seed)}") from exc


def check(world: World) -> None:
    """All that must hold."""
    records = records_of(world)
    check_once_each(world, records)
    for record in records:
        check_record(world, record)
    check_released(world)
    check_replays(world)


def check_once_each(world: World, records: list[Trajectory]) -> None:
    """No trajectory is lost or doubled, for the client and in the journal; no call either."""
    schedule = world.schedule
    expected = {f"b{b}-g{g}-t0" for b in range(schedule.batches) for g in range(schedule.prompts)}
    assert Counter(record.trajectory_id for record in records) == Counter(expected)
    assert world.store.stats.committed == len(expected)
    assert world.store.stats.late == world.store.stats.conflicting == 0
    assert max(Counter(world.tools.delivered).values(), default=0) <= 1


def check_record(world: World, record: Trajectory) -> None:
    """It is what it would have been, or it says why not; an infrastructure's failure has no reward."""
    match record.status:
        case TrajectoryStatus.FAILED:
            assert record.failure is not None
            assert record.failure.kind is FailureKind.INFRA
            assert record.failure.stage != "gate", record.failure
            assert record.reward is None
        case TrajectoryStatus.ABORTED:
            assert record.stop_reason is StopReason.CANCELLED
            assert record.batch_id in world.cancelled
        case _:
            calm = undisturbed()[record.prompt_id]
            outcomes = {call.outcome for step in record.steps for call in step.tool_calls}
            assert outcomes <= {"ok", "timed_out", "unresolved"}
            if outcomes <= {"ok"}:
                assert unresolved_calls(record) == 0
                assert (record.response_ids, record.response_mask) == (calm.response_ids, calm.response_mask)
                assert (record.stop_reason, record.reward) == (calm.stop_reason, calm.reward)


def check_released(world: World) -> None:
    """Nothing is held by anybody: slots, permits, engines, entries of the control plane."""
    last = world.lives[-1]
    assert last.gauges is not None
    assert (last.gauges.running, last.gauges.queued) == (0, 0)
    assert {(load.running, load.waiting) for load in last.loads} <= {(0, 0)}
    assert world.launcher.alive() == []
    assert all(worker.stopped for worker in world.launcher.launched)
    last.plane.state.check_invariants()
    assert (last.plane.state.trajectories, last.plane.state.batches) == ({}, {})


def check_replays(world: World) -> None:
    """A fresh control plane that hears the same events gives the same commands."""
    settings = plane_settings(world.config)
    for life in world.lives:
        report = replay(settings, [decode_entry(line) for line in life.lines], check_every=0)
        assert report.difference is None
