"""Schedulers rank what waits."""

from __future__ import annotations

from heddle.control.state import TrajectoryState
from heddle.scheduling import make_scheduler
from heddle.types import BatchId, GroupId, TrajectoryId


def make_trajectory(name: str, *, arrival: int) -> TrajectoryState:
    return TrajectoryState(
        TrajectoryId(name), BatchId("b"), GroupId("g"), 0.0, 100, 10, 0, 0, 0.0, 0.0, arrival=arrival
    )


def test_fcfs_ranks_by_entry_into_the_queue() -> None:
    """The earlier arrival has the higher priority, whatever the time."""
    fcfs = make_scheduler("fcfs")
    waiting = [make_trajectory("late", arrival=9), make_trajectory("early", arrival=2)]

    order = sorted(waiting, key=lambda t: fcfs.priority(t, 50.0), reverse=True)

    assert [t.trajectory_id for t in order] == ["early", "late"]
    assert fcfs.name == "fcfs"
