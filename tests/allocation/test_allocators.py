"""Allocators make workers of a budget."""

from __future__ import annotations

import pytest

from heddle.allocation import make_allocator
from heddle.errors import ConfigError


def degrees(pool: str, budget: int) -> list[int]:
    return [spec.tp_degree for spec in make_allocator("fixed", pool=pool, slots=4).allocate(budget)]


def test_fixed_makes_the_workers_that_the_pool_spells_out() -> None:
    """Ids count up, slots are the same for all."""
    specs = make_allocator("fixed", pool="2 + 1", slots=3).allocate(4)

    assert [(s.worker_id, s.tp_degree, s.slots) for s in specs] == [("w0", 2, 3), ("w1", 1, 3)]


@pytest.mark.parametrize(
    ("pool", "budget", "expected"),
    [("auto", 3, [1, 1, 1]), ("2", 2, [2]), ("1+1", 2, [1, 1]), ("1+1+1+1", 2, [1, 1, 1, 1])],
)
def test_fixed_fits_pools_into_budgets(pool: str, budget: int, expected: list[int]) -> None:
    """auto is one worker per unit; single-unit workers alone may outnumber the budget."""
    assert degrees(pool, budget) == expected


@pytest.mark.parametrize(("pool", "budget"), [("2+1", 2), ("4", 2), ("2+2", 3)])
def test_fixed_refuses_a_pool_above_the_budget(pool: str, budget: int) -> None:
    """A worker of higher degree never shares its units."""
    with pytest.raises(ConfigError, match=r"needs \d units but there are \d"):
        degrees(pool, budget)


@pytest.mark.parametrize("pool", ["", "0", "1+", "-1", "two", "1,1", "1.5"])
def test_fixed_refuses_what_is_no_pool(pool: str) -> None:
    """The error shows how a pool is written."""
    with pytest.raises(ConfigError, match="degrees joined by"):
        make_allocator("fixed", pool=pool, slots=4)


def test_fixed_refuses_no_slots_and_no_budget() -> None:
    """A worker without slots and a pool without units are no use."""
    with pytest.raises(ConfigError, match="slots must be at least 1"):
        make_allocator("fixed", pool="auto", slots=0)
    with pytest.raises(ConfigError, match="budget must be at least 1"):
        degrees("auto", 0)
