"""Exact placement and allocation equal exhaustive search; the recurrence is never better."""

from __future__ import annotations

import numpy as np
import pytest
from exhaustive import (
    assert_is_partition,
    best_of_all,
    by_hand,
    group_prices,
    make_degrees,
    make_lengths,
    make_size_cost,
    pools,
)
from hypothesis import given
from hypothesis import strategies as st

from heddle.allocation import exact as exact_allocation
from heddle.errors import ConfigError
from heddle.placement import exact as exact_placement
from heddle.placement import presorted_dp
from heddle.planning.cost import SizeCost, row_of
from heddle.planning.plan import PriceName
from heddle.planning.reach import budget_states, counted_states, pool_states

INSTANCES = 2_400


def test_the_reference_equals_the_literal_enumeration() -> None:
    """Subset by subset or assignment by assignment, the optimum of a pool is the same."""
    rng = np.random.default_rng(0)
    for _ in range(60):
        lengths = make_lengths(rng, most=5)
        degrees = make_degrees(rng)
        cost = make_size_cost(rng, degrees, len(lengths))
        pool = tuple(int(d) for d in rng.choice(degrees, int(rng.integers(1, 4))))
        states = pool_states([row_of(degrees, degree) for degree in pool], len(degrees))
        assert best_of_all(group_prices(lengths, cost), states)[-1] == by_hand(lengths, cost, pool)


def test_pools_are_all_sets_of_workers_within_the_budget() -> None:
    """Three GPUs in ones and twos: 1, 2, 1+1, 2+1, 1+1+1."""
    assert sorted(pools(3, (1, 2))) == [(1,), (1, 1), (1, 1, 1), (2,), (2, 1)]


def test_exact_equals_exhaustive_search() -> None:
    """All partitions and degree sequences, empty groups, mixed degrees, plateaus, ties, n = 0 to 9."""
    rng = np.random.default_rng(1)
    sizes = set()
    for _ in range(INSTANCES):
        lengths = make_lengths(rng)
        degrees = make_degrees(rng)
        cost = make_size_cost(rng, degrees, len(lengths))
        gpus = int(rng.integers(min(degrees), 7))
        prices = group_prices(lengths, cost)
        best = best_of_all(prices, budget_states(gpus, degrees)).min() if len(lengths) else 0.0
        joint = exact_allocation.allocate(lengths, gpus, cost)
        assert joint.makespan_s == best
        assert sum(joint.degrees) <= gpus
        assert_is_partition(joint, lengths, cost)
        pool = tuple(int(d) for d in rng.choice(degrees, int(rng.integers(1, 4))))
        rows = [row_of(degrees, degree) for degree in pool]
        placed = exact_placement.place(lengths, pool, cost)
        of_pool = best_of_all(prices, pool_states(rows, len(degrees)))[-1]
        assert placed.makespan_s == of_pool
        assert placed.degrees == pool
        assert_is_partition(placed, lengths, cost)
        assert presorted_dp.place(lengths, pool, cost).makespan_s >= of_pool
        sizes.add(len(lengths))
    assert sizes == set(range(10))


def test_exact_respects_limits_on_the_number_of_workers() -> None:
    """Exhaustive search over the pools of an allowed size finds nothing better, or no pool at all."""
    rng = np.random.default_rng(2)
    for _ in range(300):
        lengths = make_lengths(rng, most=6)
        degrees = make_degrees(rng)
        cost = make_size_cost(rng, degrees, len(lengths))
        gpus = int(rng.integers(min(degrees), 8))
        least, most = int(rng.integers(1, 4)), int(rng.integers(1, 6))
        if least > most or least * min(degrees) > gpus:
            with pytest.raises(ConfigError, match="cannot be"):
                exact_allocation.allocate(lengths, gpus, cost, min_workers=least, max_workers=most)
            continue
        states = counted_states(gpus, degrees, most)
        allowed = best_of_all(group_prices(lengths, cost), states)[least * (gpus + 1) :]
        found = exact_allocation.allocate(lengths, gpus, cost, min_workers=least, max_workers=most)
        assert found.makespan_s == allowed.min()
        if len(lengths):
            assert least <= len(found.degrees) <= most


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=7),
    st.lists(st.integers(0, 3), min_size=7, max_size=7),
    st.integers(1, 9),
    st.lists(st.integers(0, 2), min_size=7, max_size=7),
)
def test_lemma_5_1_some_optimal_partition_is_contiguous(
    tokens: list[int], rises: list[int], alone: int, owners: list[int]
) -> None:
    """Runs of a partition's group sizes, longest group first, cost no more than the partition."""
    lengths = np.array(sorted(tokens, reverse=True), dtype=float)
    steps = np.concatenate([[0.0], alone + np.cumsum(rises)])[None, :]
    cost = SizeCost(PriceName.STATIC, (1,), steps)
    groups = [lengths[[i for i in range(len(lengths)) if owners[i] == worker]] for worker in range(3)]
    groups.sort(key=lambda group: -group[0] if len(group) else 0.0)
    runs = np.split(lengths, np.cumsum([len(group) for group in groups])[:-1])
    assert max(cost.seconds(1, run) for run in runs) <= max(cost.seconds(1, group) for group in groups)


def test_a_mixed_pool_may_want_its_slow_worker_empty() -> None:
    """The paper's recurrence gives every worker something; the optimum need not."""
    cost = SizeCost(PriceName.STATIC, (2, 1), np.array([[0.0, 1.0, 1.5], [0.0, 9.0, 9.0]]))
    lengths = np.array([4.0, 4.0])

    assert exact_placement.place(lengths, (2, 1), cost).makespan_s == 6.0
    assert presorted_dp.place(lengths, (2, 1), cost).makespan_s == 36.0


def test_no_worker_is_a_mistake() -> None:
    """Placement needs workers, allocation a budget for one."""
    cost = SizeCost(PriceName.STATIC, (2,), np.array([[0.0, 1.0]]))
    with pytest.raises(ConfigError, match="at least one worker"):
        exact_placement.place(np.array([1.0]), (), cost)
    with pytest.raises(ConfigError, match="no price"):
        exact_placement.place(np.array([1.0]), (4,), cost)
    with pytest.raises(ConfigError, match="no worker fits"):
        exact_allocation.allocate(np.array([1.0]), 1, cost)
