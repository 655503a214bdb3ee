"""Trust is earned by the weakest of what was measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.planning.trust import MIN_SAMPLES, earned, earned_order
from heddle.types import Trust

MEASURED = st.builds(
    Trust,
    tail_recall=st.floats(0, 1),
    rank_correlation=st.floats(-1, 1),
    coverage=st.floats(0, 1),
    samples=st.integers(0, 1000),
)


@given(MEASURED)
def test_it_lies_between_nothing_and_everything(trust: Trust) -> None:
    """Few samples earn nothing, whatever they say."""
    assert 0.0 <= earned(trust) <= 1.0
    if trust.samples < MIN_SAMPLES:
        assert earned(trust) == 0.0


@given(MEASURED, MEASURED)
def test_better_in_everything_is_never_trusted_less(one: Trust, other: Trust) -> None:
    """Monotone in each of the four."""
    better = Trust(
        max(one.tail_recall, other.tail_recall),
        max(one.rank_correlation, other.rank_correlation),
        max(one.coverage, other.coverage),
        max(one.samples, other.samples),
    )
    assert earned(better) >= max(earned(one), earned(other))


@pytest.mark.parametrize(
    ("trust", "level"),
    [
        (None, 0.0),
        (Trust(1.0, 1.0, 0.8, 1000), 1.0),
        (Trust(0.8, 1.0, 0.8, 1000), 0.0),
        (Trust(0.9, 1.0, 0.8, 1000), 0.5),
        (Trust(1.0, 0.6, 0.8, 1000), 0.0),
        (Trust(1.0, 1.0, 0.4, 1000), 0.0),
    ],
)
def test_each_measure_alone_can_refuse(trust: Trust | None, level: float) -> None:
    """One long trajectory in five misfiled is too many."""
    assert earned(trust) == pytest.approx(level)


@given(MEASURED)
def test_a_rougher_order_is_enough_for_those_that_wait(trust: Trust) -> None:
    """Whoever is trusted to place by length is trusted as far at least to order by it."""
    assert earned(trust) <= earned_order(trust) <= 1.0
    if trust.rank_correlation <= 0.6:
        assert earned_order(trust) == 0.0
    if trust.rank_correlation >= 0.9 and trust.samples >= MIN_SAMPLES:
        assert earned_order(trust) == 1.0
