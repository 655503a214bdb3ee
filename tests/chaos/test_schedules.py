"""A thousand schedules of faults, and after each of them the same promises.

A failure names its seed: ``check(play(draw(seed)))`` plays it alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

import pytest
from chaos_checks import (
    check_aborted,
    check_failed,
    check_once_each,
    check_released,
    check_replays,
    play,
    records_of,
)
from chaos_world import World, hurry
from crash_rig import unresolved_calls
from schedule import Schedule, draw

from heddle.records import Trajectory
from heddle.types import TrajectoryStatus

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


def check_record(world: World, record: Trajectory) -> None:
    """It is what it would have been, or it says why not; an infrastructure's failure has no reward."""
    match record.status:
        case TrajectoryStatus.FAILED:
            check_failed(record)
        case TrajectoryStatus.ABORTED:
            check_aborted(world, record)
        case _:
            calm = undisturbed()[record.prompt_id]
            outcomes = {call.outcome for step in record.steps for call in step.tool_calls}
            assert outcomes <= {"ok", "timed_out", "unresolved"}
            if outcomes <= {"ok"}:
                assert unresolved_calls(record) == 0
                assert (record.response_ids, record.response_mask) == (calm.response_ids, calm.response_mask)
                assert (record.stop_reason, record.reward) == (calm.stop_reason, calm.reward)
