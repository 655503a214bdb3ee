"""What is remembered of open trajectories does not depend on how long they become."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from lives import life, stream

from heddle.predict import make_predictor
from heddle.predict.buckets import MOST_CELLS, STAGE_STARTS, STARTS, cell_of, places_of
from heddle.predict.evaluation.scores import score
from heddle.predict.open_paths import RECENT, Estimates, OpenPaths
from heddle.predict.point import Point
from heddle.types import NO_STEP, GroupId, TrajectoryId

NAME = TrajectoryId("t")


def walked(steps: int) -> OpenPaths:
    """One trajectory, estimated before its first step and after each."""
    paths = OpenPaths()
    for steps_done in range(steps + 1):
        point = Point(NAME, GroupId("g"), None, steps_done, 10 * steps_done, 0, 0, 0.0, NO_STEP)
        one = np.zeros(1)
        buckets = places_of([steps_done]).buckets
        paths.add([point], Estimates(True, buckets, np.zeros((1, 2)), np.zeros((5, 1)), one, one, one))
    return paths


def kept(steps: int) -> list[int]:
    """After how many steps the points were that are learned from."""
    return [estimated.point.steps_done for estimated in walked(steps).pop(NAME)]


@given(st.integers(0, 80), st.integers(0, 80))
def test_a_longer_life_keeps_the_same_of_its_beginning(first: int, second: int) -> None:
    """Or the means of early steps would be those of short trajectories."""
    short, long = sorted((first, second))
    assert kept(long)[: len(kept(short))] == kept(short)


def test_few_points_are_kept_of_a_long_life() -> None:
    """Every step at first, then eight to each doubling."""
    assert kept(40) == [*range(16), *range(16, 32, 2), 32, 36, 40]
    assert len(kept(4096)) == 16 + 8 * 8 + 1


@given(st.integers(0, 100_000))
def test_cells_are_in_order(steps: int) -> None:
    """And none is left out."""
    assert cell_of(steps + 1) - cell_of(steps) in (0, 1)


@given(st.lists(st.integers(0, 10_000), min_size=2, max_size=8))
def test_one_point_is_placed_like_one_of_many(steps: list[int]) -> None:
    """By the starts of buckets and stages, and by its cell."""
    buckets, stages, cells = (array.tolist() for array in places_of(steps))
    for index, done in enumerate(steps):
        alone = places_of([done])
        assert [array.item() for array in alone] == [buckets[index], stages[index], cells[index]]
        assert buckets[index] == sum(start <= done for start in STARTS) - 1
        assert stages[index] == sum(start <= done for start in STAGE_STARTS) - 1
        assert cells[index] == min(cell_of(done), MOST_CELLS - 1)


def test_the_latest_points_are_at_hand_for_late_estimates() -> None:
    """Whether they are kept for learning or not."""
    paths = walked(1001)
    latest = paths.latest(NAME)
    assert latest is not None
    assert latest.steps_done == 1001
    found = [point.steps_done for s in range(1002) if (point := paths.at(NAME, s))]
    assert found[-RECENT:] == list(range(1002 - RECENT, 1002))


def test_intervals_hold_early_in_lives_of_very_different_length() -> None:
    """A third of the lives has 64 steps, the others 4: after the first step nobody knows which."""
    lives = [life(f"t{i}", [10] * (64 if i % 3 == 0 else 4), prompt=f"p{i}") for i in range(192)]
    said = [s for s in stream(make_predictor("progressive"), lives) if s.steps_done == 1][96:]
    scored = score(said)
    assert scored is not None
    assert scored.coverage_90 is not None
    assert scored.coverage_90 >= 0.85
