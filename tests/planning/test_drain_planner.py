"""The draining planner: a plan at any moment, never worse than any candidate, close to the optimum."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from exhaustive import (
    assert_is_partition,
    best_of_all,
    group_prices,
    make_degrees,
    make_draining_cost,
    make_lengths,
)

from heddle.allocation import drain as drain_allocation
from heddle.errors import ConfigError
from heddle.placement import drain as drain_placement
from heddle.planning.cost import DrainingCost, draining_cost, row_of
from heddle.planning.drain_groups import best_runs, judged, levelled, polished, spread
from heddle.planning.plan import Partition
from heddle.planning.reach import budget_states, pool_states, sequence_states
from heddle.planning.shipped import shipped_profiles


def looks(count: int) -> Callable[[], bool]:
    """Time is up at the given look at the clock: deadlines without a clock."""
    left = iter(range(count))
    return lambda: next(left, None) is None


def test_small_problems_are_solved_almost_always() -> None:
    """Never below the exhaustive optimum, at it in nine cases of ten, within a tenth of it on average."""
    rng = np.random.default_rng(5)
    ratios = []
    for seed in range(60):
        lengths = make_lengths(rng, most=7)
        degrees = make_degrees(rng)
        cost = make_draining_cost(rng, degrees, len(lengths))
        gpus = int(rng.integers(min(degrees), 7))
        best = best_of_all(group_prices(lengths, cost), budget_states(gpus, degrees)).min()
        found = drain_allocation.allocate(lengths, gpus, cost, seed=seed, out_of_time=looks(40))
        assert_is_partition(found, lengths, cost)
        assert sum(found.degrees) <= gpus
        assert found.makespan_s >= best
        ratios.append(found.makespan_s / best if best > 0 else 1.0)
    assert np.mean(np.array(ratios) == 1.0) > 0.9
    assert np.mean(ratios) < 1.1


def test_every_plan_of_the_search_is_better_than_the_one_before() -> None:
    """And the last is at least as good as everything it was given or can see at once."""
    profile = shipped_profiles().select("h100_sxm", "Qwen3-14B")
    lengths = np.sort(np.random.default_rng(6).lognormal(7, 0.7, 1500))[::-1].copy()
    cost = draining_cost(profile, (8, 4, 2, 1), len(lengths), slots_per_gpu=64)
    plans = list(drain_allocation.search(lengths, 16, cost, seed=1, out_of_time=looks(200)))

    makespans = [plan.makespan_s for plan in plans]
    assert makespans == sorted(makespans, reverse=True)
    assert len(set(makespans)) == len(makespans) > 2
    for plan in plans:
        assert_is_partition(plan, lengths, cost)
        assert sum(plan.degrees) <= 16
    for degree in cost.degrees:
        pool = (degree,) * (16 // degree)
        runs = best_runs(
            lengths, cost, sequence_states([row_of(cost.degrees, degree)] * len(pool), 4), looks(99)
        )
        assert runs is not None
        assert makespans[-1] <= min(spread(lengths, cost, pool).makespan_s, runs.makespan_s)


def test_a_candidate_is_never_lost() -> None:
    """Time is up at once, and the candidate is the best there is."""
    rng = np.random.default_rng(7)
    lengths = make_lengths(rng, most=9)
    cost = make_draining_cost(rng, (2, 1), len(lengths))
    good = drain_allocation.allocate(lengths, 6, cost, seed=0, out_of_time=looks(60))
    again = drain_allocation.allocate(lengths, 6, cost, candidates=[good], out_of_time=lambda: True)
    assert again.makespan_s <= good.makespan_s


def test_a_homogeneous_pool_is_not_better_placed_alone() -> None:
    """Where it comes close it gets the same search, step by step; the others alone find less for one seed."""
    profile = shipped_profiles().select("h100_sxm", "Qwen3-14B")
    for seed in (0, 5):
        lengths = np.sort(np.random.default_rng(seed).lognormal(7, 0.7, 800))[::-1].copy()
        cost = draining_cost(profile, (8, 4, 2, 1), len(lengths), slots_per_gpu=64)
        alone = drain_placement.place(lengths, (4, 4), cost, seed=seed, out_of_time=looks(50))
        free = drain_allocation.allocate(lengths, 8, cost, seed=seed, out_of_time=looks(150))
        assert free.makespan_s <= alone.makespan_s


def test_a_goal_that_is_reached_ends_the_search() -> None:
    """The first plan that is good enough is taken; the clock would never have stopped it."""
    rng = np.random.default_rng(8)
    lengths = make_lengths(rng, most=9)
    cost = make_draining_cost(rng, (2, 1), len(lengths))
    found = drain_allocation.allocate(lengths, 6, cost, goal_s=1e9, out_of_time=lambda: False)
    assert found.makespan_s <= 1e9


def test_the_same_seed_and_the_same_time_give_the_same_plan() -> None:
    """Polishing has a generator of its own, seeded by the search."""
    rng = np.random.default_rng(9)
    lengths = np.sort(rng.lognormal(7, 1, 200))[::-1].copy()
    cost = make_draining_cost(rng, (4, 2, 1), len(lengths))
    first, second = (
        drain_allocation.allocate(lengths, 12, cost, seed=4, out_of_time=looks(50)) for _ in range(2)
    )
    assert first.degrees == second.degrees
    assert [group.tolist() for group in first.groups] == [group.tolist() for group in second.groups]


def test_best_runs_are_the_best_contiguous_groups() -> None:
    """Of all sequences of degrees, to within the tolerance of the bisection."""
    rng = np.random.default_rng(10)
    for _ in range(150):
        lengths = make_lengths(rng, most=8)
        if len(lengths) == 0:
            continue
        degrees = make_degrees(rng)
        cost = make_draining_cost(rng, degrees, len(lengths))
        gpus = int(rng.integers(min(degrees), 7))
        states = budget_states(gpus, degrees)
        reached = np.full((len(states), len(lengths) + 1), np.inf)
        reached[0, 0] = 0.0
        for state in range(1, len(states)):
            for row, degree in enumerate(degrees):
                if states[state, row] < 0:
                    continue
                for start in range(len(lengths) + 1):
                    for end in range(start, len(lengths) + 1):
                        seconds = cost.seconds(degree, lengths[start:end])
                        makespan = max(reached[states[state, row], start], seconds)
                        reached[state, end] = min(reached[state, end], makespan)
        best = reached[:, -1].min()
        found = best_runs(lengths, cost, states, lambda: False)
        assert found is not None
        assert best <= found.makespan_s <= best * (1 + 2e-3)


def test_placement_on_given_workers_keeps_them() -> None:
    """In descending order, never below the exhaustive optimum of the pool and never above a candidate."""
    rng = np.random.default_rng(11)
    for seed in range(60):
        lengths = make_lengths(rng, most=6)
        degrees = make_degrees(rng)
        cost = make_draining_cost(rng, degrees, len(lengths))
        pool = tuple(sorted((int(d) for d in rng.choice(degrees, 3)), reverse=True))
        rows = [row_of(degrees, degree) for degree in pool]
        best = best_of_all(group_prices(lengths, cost), pool_states(rows, len(degrees)))[-1]
        everything = (np.arange(len(lengths)), np.empty(0, np.int64), np.empty(0, np.int64))
        candidate = judged(lengths, cost, Partition(pool, everything, 0.0))
        placed = drain_placement.place(lengths, pool, cost, candidates=[candidate], seed=seed, patience=300)
        assert placed.degrees == pool
        assert_is_partition(placed, lengths, cost)
        assert best <= placed.makespan_s <= candidate.makespan_s


def test_polishing_never_makes_worse_and_ends_by_patience_or_time() -> None:
    """From a bad start it gets better; with time up it returns the start."""
    rng = np.random.default_rng(12)
    lengths = np.sort(rng.lognormal(7, 1, 150))[::-1].copy()
    cost = make_draining_cost(rng, (1,), len(lengths))
    groups = (np.arange(150), np.empty(0, np.int64), np.empty(0, np.int64))
    bad = judged(lengths, cost, Partition((1, 1, 1), groups, 0.0))
    better = polished(lengths, cost, bad, seed=1, patience=500, out_of_time=lambda: False)

    assert_is_partition(better, lengths, cost)
    assert better.makespan_s < bad.makespan_s
    assert polished(lengths, cost, bad, seed=1, patience=500, out_of_time=lambda: True).makespan_s == (
        bad.makespan_s
    )


def test_no_worker_is_a_mistake_and_no_trajectory_an_empty_plan() -> None:
    """For placement and allocation alike."""
    cost = make_draining_cost(np.random.default_rng(0), (2,), 1)
    with pytest.raises(ConfigError, match="at least one worker"):
        drain_placement.place(np.array([1.0]), (), cost)
    with pytest.raises(ConfigError, match="no worker fits"):
        drain_allocation.allocate(np.array([1.0]), 1, cost, out_of_time=lambda: True)
    assert drain_allocation.allocate(np.empty(0), 2, cost, out_of_time=lambda: False).makespan_s == 0.0
    assert drain_placement.place(np.empty(0), (2, 2), cost).degrees == (2, 2)


def test_levelling_makes_groups_alike_as_far_as_the_deadline_allows() -> None:
    """Nobody ends too late, and the fullest worker never gets fuller; a generous deadline evens out all."""
    rng = np.random.default_rng(11)
    for _ in range(40):
        lengths = make_lengths(rng, most=12)
        degrees = make_degrees(rng)
        cost = make_draining_cost(rng, degrees, len(lengths))
        pool = tuple(sorted((int(degree) for degree in rng.choice(degrees, 3)), reverse=True))
        plan = drain_placement.place(lengths, pool, cost, seed=1, out_of_time=looks(20))

        within_s = plan.makespan_s * float(rng.choice([1.0, 1.1, 2.0]))
        level = levelled(lengths, cost, plan, within_s)

        assert_is_partition(level, lengths, cost)
        assert level.makespan_s <= within_s * (1 + 1e-12)
        assert max(loads(level, cost)) <= max(loads(plan, cost))


def test_one_long_trajectory_is_not_given_a_worker_that_it_does_not_need() -> None:
    """To be alone saves it little; within that little the others get their share of its worker back."""
    profile = shipped_profiles().select("h100_sxm", "Qwen3-14B")
    lengths = np.array([4000.0, *[100.0] * 400])
    cost = draining_cost(profile, (8,), len(lengths))
    plan = drain_placement.place(lengths, (8, 8), cost, seed=0, out_of_time=looks(20))

    level = levelled(lengths, cost, plan, plan.makespan_s * 1.05)

    assert min(len(group) for group in plan.groups) == 1
    assert min(len(group) for group in level.groups) > 150
    assert level.makespan_s <= plan.makespan_s * 1.05


def loads(partition: Partition, cost: DrainingCost) -> list[float]:
    """Members of each group per cap."""
    pairs = zip(partition.degrees, partition.groups, strict=True)
    return [len(group) / cost.caps[row_of(cost.degrees, degree)] for degree, group in pairs]
