"""Lengths to place by, from quantiles and trust."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.errors import ConfigError
from heddle.planning.hedge import hedged_lengths

LEVELS = (0.1, 0.5, 0.9)
QUANTILES = [[10.0, 20.0, 100.0], [30.0, 40.0, 50.0]]


def test_full_trust_takes_the_medians() -> None:
    """Whatever lies around them."""
    assert hedged_lengths(LEVELS, QUANTILES, 1.0).tolist() == [20.0, 40.0]


def test_no_trust_takes_all_as_equally_long() -> None:
    """As long as the mean of what they may become."""
    assert hedged_lengths(LEVELS, QUANTILES, 0.0).tolist() == [75.0, 75.0]


def test_half_trust_lets_the_uncertain_one_overtake() -> None:
    """At level 0.75 they are 70 and 46.25, shrunk half-way to their mean of 58.125."""
    assert hedged_lengths(LEVELS, QUANTILES, 0.5).tolist() == pytest.approx([64.0625, 52.1875])


def test_point_estimates_are_only_shrunk() -> None:
    """One level; no trajectories, no lengths."""
    assert hedged_lengths((0.5,), [[10.0], [30.0]], 0.5).tolist() == [15.0, 25.0]
    assert hedged_lengths(LEVELS, [], 0.5).tolist() == []


@given(
    st.lists(st.lists(st.floats(0, 1e6), min_size=3, max_size=3).map(sorted), min_size=1, max_size=8),
    st.floats(0, 1),
)
def test_who_is_longer_at_every_quantile_stays_longer(quantiles: list[list[float]], trust: float) -> None:
    """Hedging changes distances, and order only where quantiles disagree; lengths stay in range."""
    hedged = hedged_lengths(LEVELS, quantiles, trust)
    values = np.array(quantiles)

    assert np.all(hedged >= values.min() * (1 - 1e-9))
    assert np.all(hedged <= values.max() * (1 + 1e-9))
    for i, mine in enumerate(values):
        for j, other in enumerate(values):
            if np.all(mine >= other):
                assert hedged[i] >= hedged[j] - 1e-6


@pytest.mark.parametrize(
    ("levels", "quantiles", "trust", "message"),
    [
        (LEVELS, QUANTILES, 1.5, "trust"),
        (LEVELS, QUANTILES, float("nan"), "trust"),
        ((), [[]], 1.0, "levels"),
        ((0.5, 0.5), [[1.0, 2.0]], 1.0, "levels"),
        ((0.0, 0.5), [[1.0, 2.0]], 1.0, "levels"),
        (LEVELS, [[1.0, 2.0]], 1.0, "needs 3 quantiles"),
        (LEVELS, [[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]], 1.0, "trajectory 1"),
        (LEVELS, [[-1.0, 2.0, 3.0]], 1.0, "trajectory 0"),
        (LEVELS, [[1.0, 2.0, float("inf")]], 1.0, "trajectory 0"),
    ],
)
def test_nonsense_is_refused(
    levels: tuple[float, ...], quantiles: list[list[float]], trust: float, message: str
) -> None:
    """The message says which argument, or whose quantiles."""
    with pytest.raises(ConfigError, match=message):
        hedged_lengths(levels, quantiles, trust)
