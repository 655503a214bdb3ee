"""Means over seeds and their intervals."""

from __future__ import annotations

import pytest

from heddle.simulate.statistics import Spread


def test_the_interval_is_student_s() -> None:
    """1, 2, 3: deviation 1, two degrees of freedom, quantile 4.303."""
    spread = Spread.of([3.0, 1.0, 2.0])
    assert (2.0, 1.0, 3.0) == (spread.mean, spread.least, spread.most)
    assert pytest.approx(4.303 / 3**0.5) == spread.half_width


def test_many_values_have_the_normal_interval() -> None:
    """Beyond the table."""
    values = [float(index % 2) for index in range(100)]
    assert pytest.approx(1.96 * (25 / 99) ** 0.5 / 10) == Spread.of(values).half_width


def test_one_value_has_no_interval() -> None:
    """Nothing is known of its spread."""
    assert Spread(7.0, 0.0, 7.0, 7.0) == Spread.of([7.0])
