"""The paper's recurrence, literally."""

from __future__ import annotations

import numpy as np
import pytest

from heddle.errors import ConfigError
from heddle.placement import presorted_dp
from heddle.planning.cost import SizeCost, row_of
from heddle.planning.plan import PriceName
from heddle.planning.profile import Floats


def literal(lengths: Floats, degrees: tuple[int, ...], cost: SizeCost) -> float:
    """Equation 3 as printed, its boundary conditions included; O(n^2 m)."""
    n, m = len(lengths), len(degrees)
    steps = [cost.steps[row_of(cost.degrees, degree)] for degree in degrees]
    dp = np.full((n + 1, m + 1), np.inf)
    dp[0, 0] = 0.0
    for i in range(1, n + 1):
        dp[i, 1] = lengths[0] * steps[0][i]
    for j in range(2, m + 1):
        for i in range(1, n + 1):
            for k in range(1, i):
                dp[i, j] = min(dp[i, j], max(dp[k, j - 1], lengths[k] * steps[j - 1][i - k]))
    return float(dp[n, m])


def make_problem(rng: np.random.Generator) -> tuple[Floats, tuple[int, ...], SizeCost]:
    """No more workers than trajectories; plateaus, ties, and degrees in any order."""
    n = int(rng.integers(1, 13))
    lengths = np.sort(rng.integers(0, 12, n).astype(float))[::-1].copy()
    rises = rng.integers(0, 4, (3, n)).astype(float)
    rises[:, 0] = rng.integers(1, 9, 3)
    steps = np.concatenate([np.zeros((3, 1)), np.cumsum(rises, axis=1)], axis=1)
    workers = int(rng.integers(1, min(n, 5) + 1))
    degrees = tuple(int(degree) for degree in rng.choice([4, 2, 1], workers))
    return lengths, degrees, SizeCost(PriceName.STATIC, (4, 2, 1), steps)


def test_equals_the_literal_recurrence() -> None:
    """In equal and mixed pools, where the recurrence is not even monotone in the number of trajectories."""
    rng = np.random.default_rng(0)
    for _ in range(1_500):
        lengths, degrees, cost = make_problem(rng)
        placed = presorted_dp.place(lengths, degrees, cost)
        assert placed.makespan_s == literal(lengths, degrees, cost)
        assert all(len(group) > 0 for group in placed.groups)
        prices = [cost.seconds(d, lengths[g]) for d, g in zip(degrees, placed.groups, strict=True)]
        assert placed.makespan_s == max(prices)


def test_bundles_stay_together_and_cost_little() -> None:
    """Aggregated short trajectories are never split, and the placement is a placement of all."""
    rng = np.random.default_rng(1)
    for _ in range(200):
        lengths, degrees, cost = make_problem(rng)
        whole = presorted_dp.place(lengths, degrees, cost)
        bundled = presorted_dp.place(lengths, degrees, cost, bundle_below_tokens=6.0, bundle=3)
        assert np.concatenate(bundled.groups).tolist() == list(range(len(lengths)))
        long = int(np.count_nonzero(lengths >= 6.0))
        starts = {int(group[0]) for group in bundled.groups if len(group)}
        assert all(start <= long or (start - long) % 3 == 0 for start in starts)
        if len(degrees) <= long + (len(lengths) - long + 2) // 3:
            assert bundled.makespan_s >= whole.makespan_s


def test_fewer_trajectories_than_workers_go_to_the_first() -> None:
    """The recurrence has no solution there; one each is what it would say of the first workers."""
    cost = SizeCost(PriceName.STATIC, (1,), np.array([[0.0, 1.0, 2.0]]))
    placed = presorted_dp.place(np.array([5.0, 3.0]), (1, 1, 1), cost)

    assert [group.tolist() for group in placed.groups] == [[0], [1], []]
    assert placed.makespan_s == 5.0
    assert presorted_dp.place(np.empty(0), (1, 1), cost).makespan_s == 0.0


def test_nonsense_is_refused() -> None:
    """No workers, unknown degrees and empty bundles."""
    cost = SizeCost(PriceName.STATIC, (1,), np.array([[0.0, 1.0]]))
    with pytest.raises(ConfigError, match="at least one worker"):
        presorted_dp.place(np.array([1.0]), (), cost)
    with pytest.raises(ConfigError, match="no price"):
        presorted_dp.place(np.array([1.0]), (2,), cost)
    with pytest.raises(ConfigError, match="bundle"):
        presorted_dp.place(np.array([1.0]), (1,), cost, bundle=0)
