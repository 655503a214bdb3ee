"""The running estimate of how fast prefixes travel."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.errors import ConfigError
from heddle.planning.transfer_rate import TransferRate


def rate_of(estimate: TransferRate) -> float:
    """Where prefixes do travel."""
    rate = estimate.tokens_per_s()
    assert rate is not None
    return rate


@given(
    first=st.floats(1.0, 1e7),
    true=st.floats(1.0, 1e7),
    tokens=st.lists(st.integers(1, 100_000), min_size=1, max_size=60),
)
def test_it_lies_between_what_was_expected_and_what_was_seen(
    first: float, true: float, tokens: list[int]
) -> None:
    """And comes nearer with each transfer."""
    estimate = TransferRate(first)
    error = abs(first - true)
    for count in tokens:
        estimate.finished(count, count / true)
        low, high = sorted((first, true))
        assert low * (1 - 1e-9) <= rate_of(estimate) <= high * (1 + 1e-9)
        assert abs(rate_of(estimate) - true) <= error + 1e-9 * true
        error = abs(rate_of(estimate) - true)


def test_a_link_that_has_become_slow_is_found_out() -> None:
    estimate = TransferRate(1e5)
    for _ in range(60):
        estimate.finished(1000, 1.0)
    assert rate_of(estimate) == pytest.approx(1000.0, rel=0.05)


def test_what_was_broken_off_counts_where_it_was_slower_than_expected() -> None:
    """Tools that return first must not hide that transfers are slow; one that hardly began tells nothing."""
    estimate = TransferRate(1000.0)
    estimate.broken_off(2000, 0.5)
    assert rate_of(estimate) == 1000.0
    estimate.broken_off(2000, 20.0)
    assert rate_of(estimate) < 500.0


def test_where_nothing_travels_nothing_is_learned() -> None:
    estimate = TransferRate()
    estimate.finished(1000, 1.0)
    estimate.broken_off(1000, 100.0)
    assert estimate.tokens_per_s() is None


def test_a_rate_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="more than 0"):
        TransferRate(0.0)
