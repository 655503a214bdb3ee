"""The paper's Algorithm 2."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.allocation import annealing
from heddle.allocation import exact as exact_allocation
from heddle.errors import ConfigError
from heddle.placement import exact as exact_placement
from heddle.placement import presorted_dp
from heddle.planning.cost import SizeCost
from heddle.planning.plan import Partition, PriceName
from heddle.planning.profile import Floats

DEGREES = (4, 2, 1)
LENGTHS = np.sort(np.random.default_rng(0).lognormal(6, 1, 120))[::-1].copy()


def make_cost() -> SizeCost:
    """Higher degrees are faster, with falling returns."""
    batch = np.arange(len(LENGTHS) + 1)
    rows = [
        np.where(batch > 0, alone + slope * batch, 0.0) for alone, slope in ((3, 0.1), (4, 0.2), (6, 0.4))
    ]
    return SizeCost(PriceName.STATIC, DEGREES, np.array(rows, dtype=float))


def priced(degrees: tuple[int, ...]) -> Partition:
    """Groups do not matter here: few large workers are dear, many small ones too."""
    return Partition(degrees, (np.empty(0, np.int64),) * len(degrees), abs(len(degrees) - 5.0) + sum(degrees))


@pytest.mark.parametrize(
    "place", [exact_placement.place, partial(presorted_dp.place, bundle_below_tokens=50)]
)
def test_never_worse_than_its_start_and_never_better_than_exact(
    place: Callable[[Floats, tuple[int, ...], SizeCost], Partition],
) -> None:
    """For many seeds; the annealed allocation fits the budget and is sorted."""
    cost = make_cost()
    best = exact_allocation.allocate(LENGTHS, 12, cost).makespan_s
    for seed in range(6):
        start = annealing.random_start(12, sorted(DEGREES), random.Random(seed))
        plan = annealing.allocate(12, DEGREES, lambda degrees: place(LENGTHS, degrees, cost), seed=seed)
        assert best <= plan.makespan_s <= place(LENGTHS, start, cost).makespan_s
        assert sum(plan.degrees) <= 12
        assert list(plan.degrees) == sorted(plan.degrees, reverse=True)


def test_the_same_seed_gives_the_same_plan() -> None:
    """Randomness is the seed's alone."""
    assert annealing.allocate(16, DEGREES, priced, seed=3).degrees == (
        annealing.allocate(16, DEGREES, priced, seed=3).degrees
    )


def test_time_up_leaves_the_start() -> None:
    """The deadline is looked at before every try."""
    start = annealing.random_start(16, [1, 2, 4], random.Random(5))
    found = annealing.allocate(16, DEGREES, priced, seed=5, out_of_time=lambda: True)
    assert found.degrees == start


@given(st.integers(1, 40), st.sets(st.sampled_from([1, 2, 3, 4, 8]), min_size=1), st.integers(0, 999))
def test_every_transition_keeps_to_the_budget_and_the_allowed_degrees(
    gpus: int, degrees: set[int], seed: int
) -> None:
    """From a start that fills the budget, through many random transitions."""
    allowed = sorted(degree for degree in degrees if degree <= gpus)
    if not allowed:
        return
    rng = random.Random(seed)
    current = annealing.random_start(gpus, allowed, rng)
    assert gpus - sum(current) < allowed[0]
    for _ in range(30):
        current = annealing.neighbour(current, gpus, allowed, rng)
        assert gpus - allowed[0] < sum(current) <= gpus
        assert set(current) <= set(allowed)
        assert list(current) == sorted(current, reverse=True)


def test_all_three_transitions_are_drawn() -> None:
    """Splits add a worker, merges remove one, redistributions move a GPU; none leaves a GPU idle."""
    rng = random.Random(0)
    reached = {annealing.neighbour((3, 2), 5, [1, 2, 3, 4], rng) for _ in range(300)}
    assert reached == {(3, 1, 1), (2, 2, 1), (4, 1), (3, 2)}


def test_a_budget_too_small_is_refused() -> None:
    """No worker fits."""
    with pytest.raises(ConfigError, match="no worker fits the budget of 1"):
        annealing.allocate(1, (4, 2), priced, seed=0)
