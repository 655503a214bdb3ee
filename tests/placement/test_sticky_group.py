"""Groups stay together, and loads even."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_placers import OPTIONS, make_trajectory, make_worker, place_all, settle

from heddle.control.state import TrajectoryState
from heddle.placement import make_placer
from heddle.types import GroupId, Prediction, TrajectoryId

NAME = "sticky_group"


def make_groups(*sizes: int, prediction: Prediction | None = None) -> list[TrajectoryState]:
    """As a batch comes: group after group."""
    batch = []
    for number, size in enumerate(sizes):
        for member in range(size):
            trajectory = make_trajectory(f"g{number}-{member}")
            trajectory.group_id, trajectory.prediction = GroupId(f"g{number}"), prediction
            batch.append(trajectory)
    return batch


def workers_of_groups(homes: dict[str, list[str]]) -> dict[str, set[str]]:
    """On which workers each group is."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for worker, names in homes.items():
        for name in names:
            found[name.partition("-")[0]].add(worker)
    return dict(found)


def test_each_group_is_on_one_worker_where_shares_are_whole_groups() -> None:
    """Twelve groups of eight on four workers: three whole ones on each."""
    workers = [make_worker(f"w{i}", slots=64) for i in range(4)]
    homes = place_all(NAME, workers, make_groups(*[8] * 12))

    assert [len(names) for names in homes.values()] == [24, 24, 24, 24]
    assert all(len(on) == 1 for on in workers_of_groups(homes).values())


def test_a_large_group_is_split_evenly() -> None:
    """One group of 64 on four workers: nothing is gained by leaving three of them idle."""
    homes = place_all(NAME, [make_worker(f"w{i}", slots=64) for i in range(4)], make_groups(64))

    assert [len(names) for names in homes.values()] == [16, 16, 16, 16]


def test_a_worker_with_more_slots_gets_its_share_of_them() -> None:
    """Slots of 96 and 32: three groups and one."""
    workers = [make_worker("w0", degree=4, slots=96), make_worker("w1", slots=32)]
    homes = place_all(NAME, workers, make_groups(*[8] * 4))

    assert [len(names) for names in homes.values()] == [24, 8]
    assert all(len(on) == 1 for on in workers_of_groups(homes).values())


def test_who_has_no_home_any_more_joins_its_group() -> None:
    """Where the rest of it is, the prompt is; the other worker has fewer residents."""
    workers = [make_worker("w0", slots=64), make_worker("w1", slots=64)]
    lost, *stay = make_groups(4)
    for trajectory in stay:
        settle(workers[1], trajectory)
    placer = make_placer(NAME)
    placer.prepare([lost, *stay, *make_groups(0, 4)], workers)

    assert placer.place(lost, workers) == "w1"


@given(
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=20),
    slots=st.lists(st.integers(1, 64), min_size=1, max_size=6),
)
def test_nobody_has_more_than_its_share(sizes: list[int], slots: list[int]) -> None:
    """Of all trajectories, by slots, rounded up."""
    workers = [make_worker(f"w{i}", slots=count) for i, count in enumerate(slots)]
    batch = make_groups(*sizes)
    place_all(NAME, workers, batch)

    for worker in workers:
        assert worker.resident <= math.ceil(len(batch) / sum(slots) * worker.slots)


@pytest.mark.parametrize("name", ["drain", "exact"])
def test_placers_by_length_keep_groups_together_while_lengths_are_not_trusted(name: str) -> None:
    """Predictions that have earned nothing, and none at all: on workers that are alike."""
    nothing_earned = replace(OPTIONS, trust=lambda: None)
    for prediction in (None, Prediction(100.0, 50.0, 200.0, 0, "test")):
        workers = [make_worker(f"w{i}", slots=64) for i in range(4)]
        homes = place_all(name, workers, make_groups(*[8] * 8, prediction=prediction), nothing_earned)

        assert all(len(on) == 1 for on in workers_of_groups(homes).values())
        assert {len(names) for names in homes.values()} == {16}


def test_groups_that_are_over_are_forgotten() -> None:
    """A group of the same name in a later batch goes where there is least."""
    workers = [make_worker("w0", slots=64), make_worker("w1", slots=64)]
    placer = make_placer(NAME)
    first = make_groups(1)
    placer.prepare(first, workers)
    assert placer.place(first[0], workers) == "w0"

    workers[0].residents = {TrajectoryId("other"): make_trajectory("other")}
    second = make_groups(1)
    placer.prepare([*second, make_trajectory("other"), make_trajectory("more")], workers)
    assert placer.place(second[0], workers) == "w1"
