"""Placers choose homes."""

from __future__ import annotations

from collections import Counter

from heddle.control.state import TrajectoryState, WorkerState
from heddle.placement import make_placer
from heddle.types import BatchId, GroupId, TrajectoryId, WorkerId

PLACER = make_placer("sticky_least_loaded")


def make_trajectory(name: str) -> TrajectoryState:
    return TrajectoryState(TrajectoryId(name), BatchId("b"), GroupId("g"), 0.0, 100, 10, 0, 0, 0.0, 0.0)


def make_worker(name: str, *, slots: int = 4, resident: int = 0, placed: int = 0) -> WorkerState:
    worker = WorkerState(WorkerId(name), 1, slots, placed_total=placed)
    worker.residents = {t.trajectory_id: t for t in (make_trajectory(f"{name}-{i}") for i in range(resident))}
    return worker


def test_sticky_least_loaded_prefers_the_fewest_residents_per_slot() -> None:
    """A worker with twice the slots carries twice the residents."""
    workers = [make_worker("w0", slots=2, resident=2), make_worker("w1", slots=8, resident=7)]

    assert PLACER.place(make_trajectory("t"), workers) == "w1"


def test_sticky_least_loaded_breaks_ties_by_placements_then_by_id() -> None:
    """Of equally loaded workers the one with fewer placements, and then the first."""
    assert (
        PLACER.place(make_trajectory("t"), [make_worker("w0", placed=3), make_worker("w1", placed=1)]) == "w1"
    )
    assert PLACER.place(make_trajectory("t"), [make_worker("w0"), make_worker("w1")]) == "w0"


def test_short_trajectories_do_not_all_land_on_the_first_worker() -> None:
    """Each ends before the next comes, so residents are always zero; placements spread them."""
    workers = [make_worker(f"w{i}") for i in range(4)]
    chosen: Counter[str] = Counter()
    for index in range(200):
        name = PLACER.place(make_trajectory(f"t{index}"), workers)
        workers[int(name[1:])].placed_total += 1
        chosen[name] += 1

    assert chosen == {f"w{i}": 50 for i in range(4)}
