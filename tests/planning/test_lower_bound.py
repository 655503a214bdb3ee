"""The lower bound is one: exhaustive search finds nothing below it, at any price."""

from __future__ import annotations

import numpy as np
from exhaustive import (
    best_of_all,
    group_prices,
    make_degrees,
    make_draining_cost,
    make_lengths,
    make_size_cost,
)

from heddle.planning.bound import lower_bound
from heddle.planning.cost import DrainingCost
from heddle.planning.reach import budget_states


def test_no_draining_plan_is_below_the_bound() -> None:
    """All partitions, all degree sequences, caps that bind, groups judged event by event."""
    rng = np.random.default_rng(3)
    tight = 0
    for _ in range(600):
        lengths = make_lengths(rng, most=7)
        degrees = make_degrees(rng)
        cost = make_draining_cost(rng, degrees, len(lengths))
        gpus = int(rng.integers(min(degrees), 7))
        best = best_of_all(group_prices(lengths, cost), budget_states(gpus, degrees)).min()
        bound = lower_bound(lengths, gpus, cost)
        assert bound <= best
        tight += bound >= 0.999 * best
    assert tight > 60


def test_no_plan_at_a_size_price_is_below_the_bound() -> None:
    """The static price is never less than the time in which the group drains."""
    rng = np.random.default_rng(4)
    for _ in range(400):
        lengths = make_lengths(rng, most=7)
        degrees = make_degrees(rng)
        cost = make_size_cost(rng, degrees, len(lengths))
        gpus = int(rng.integers(min(degrees), 7))
        best = best_of_all(group_prices(lengths, cost), budget_states(gpus, degrees)).min()
        assert lower_bound(lengths, gpus, cost) <= best


def test_the_bound_is_at_least_the_longest_alone_and_all_work_at_full_batch() -> None:
    """Two that are easy to see: one long trajectory, and many that saturate the only worker."""
    cost = DrainingCost((1,), np.array([[0.0, 2.0, 3.0, 4.0, 5.0]]), np.array([4]))

    assert abs(lower_bound(np.array([100.0]), 1, cost) - 200.0) < 1e-6
    assert abs(lower_bound(np.full(400, 10.0), 1, cost) - 4000 * 5.0 / 4) < 1e-5
    assert lower_bound(np.empty(0), 1, cost) == 0.0
    assert lower_bound(np.zeros(3), 1, cost) == 0.0
