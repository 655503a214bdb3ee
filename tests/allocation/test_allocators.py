"""Allocators make workers of a budget."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.allocation import Fixed, SlotRule
from heddle.control.allocator import ALLOCATORS, AllocatorOptions, make_allocator
from heddle.control.ports import Allocator
from heddle.errors import ConfigError
from heddle.planning.profile import DegreeProfile, Profile


def degrees(pool: str, budget: int) -> list[int]:
    return [spec.tp_degree for spec in Fixed(pool, SlotRule(4)).allocate(budget)]


def test_fixed_makes_the_workers_that_the_pool_spells_out() -> None:
    """Ids count up, slots are the same for all."""
    specs = Fixed("2 + 1", SlotRule(3)).allocate(4)

    assert [(s.worker_id, s.tp_degree, s.slots) for s in specs] == [("w0", 2, 3), ("w1", 1, 3)]


@pytest.mark.parametrize(
    ("pool", "budget", "expected"),
    [
        ("auto", 3, [1, 1, 1]),
        ("2", 2, [2]),
        ("1+1", 2, [1, 1]),
        ("1+1+1+1", 2, [1, 1, 1, 1]),
        ("2*", 5, [2, 2]),
        (" 1* ", 2, [1, 1]),
    ],
)
def test_fixed_fits_pools_into_budgets(pool: str, budget: int, expected: list[int]) -> None:
    """auto is one worker per unit; single-unit workers alone may outnumber the budget."""
    assert degrees(pool, budget) == expected


@pytest.mark.parametrize(("pool", "budget"), [("2+1", 2), ("4", 2), ("2+2", 3), ("8*", 7)])
def test_fixed_refuses_a_pool_above_the_budget(pool: str, budget: int) -> None:
    """A worker of higher degree never shares its units."""
    with pytest.raises(ConfigError, match=r"needs \d units but there are \d"):
        degrees(pool, budget)


@pytest.mark.parametrize("pool", ["", "0", "1+", "-1", "two", "1,1", "1.5", "*", "0*", "1*+2", "2**"])
def test_fixed_refuses_what_is_no_pool(pool: str) -> None:
    """The error shows how a pool is written."""
    with pytest.raises(ConfigError, match="degrees joined by"):
        Fixed(pool, SlotRule(4))


def test_fixed_refuses_no_slots_and_no_budget() -> None:
    """A worker without slots and a pool without units are no use."""
    with pytest.raises(ConfigError, match="slots must be at least 1"):
        SlotRule(0)
    with pytest.raises(ConfigError, match="budget must be at least 1"):
        degrees("auto", 0)


PROFILE = Profile(
    "",
    "",
    1000.0,
    (
        DegreeProfile.measured(1, [(1, 0.010), (64, 0.030)]),
        DegreeProfile.measured(2, [(1, 0.006), (64, 0.018)], slots=6),
        DegreeProfile.measured(4, [(1, 0.004), (64, 0.012)]),
    ),
)
PLANNERS = [name for name in ALLOCATORS if name != "fixed"]


def make(name: str, *, pool: str = "auto", slots_per_gpu: int = 4) -> Allocator:
    return make_allocator(name, AllocatorOptions(pool, SlotRule(4, slots_per_gpu), PROFILE, seed=1))


@pytest.mark.parametrize("name", PLANNERS)
@settings(max_examples=15)
@given(budget=st.integers(1, 9), expected=st.lists(st.integers(0, 50_000), min_size=1, max_size=40))
def test_planners_use_the_whole_budget_with_workers_of_the_profile(
    name: str, budget: int, expected: list[int]
) -> None:
    """Highest degree first, ids count up, slots by degree within the profile's cap; the same again."""
    specs = make(name).allocate(budget, expected)

    assert sum(spec.tp_degree for spec in specs) == budget
    assert [spec.worker_id for spec in specs] == [f"w{i}" for i in range(len(specs))]
    assert [spec.tp_degree for spec in specs] == sorted((s.tp_degree for s in specs), reverse=True)
    assert {spec.slots for spec in specs} <= {4, 6, 16}
    assert specs == make(name).allocate(budget, expected)


@pytest.mark.parametrize("name", PLANNERS)
def test_a_few_long_ones_among_many_get_a_worker_of_higher_degree(name: str) -> None:
    """The many keep small ones where that is much faster; ``drain`` prefers two alike that are as good."""
    expected = [30_000] * 2 + [400] * 400

    degrees = [spec.tp_degree for spec in make(name, slots_per_gpu=64).allocate(8, expected)]

    assert degrees[0] == 4
    assert degrees == [4, 4] if name == "drain" else len(degrees) > 2


@pytest.mark.parametrize("name", PLANNERS)
def test_planners_without_expectations_make_the_pool_as_it_is_spelled(name: str) -> None:
    """A server starts before anybody has submitted anything."""
    assert [spec.tp_degree for spec in make(name, pool="2+1").allocate(4)] == [2, 1]


def test_slots_follow_the_degree_where_they_are_per_gpu() -> None:
    """Else each worker has the same."""
    assert [spec.slots for spec in Fixed("4+1", SlotRule(3, 5)).allocate(5)] == [20, 5]
    assert [spec.slots for spec in Fixed("4+1", SlotRule(3)).allocate(5)] == [3, 3]


def test_planners_need_a_profile_and_names_are_listed() -> None:
    """Said when the plane is built."""
    with pytest.raises(ConfigError, match="allocator drain needs a profile"):
        make_allocator("drain", AllocatorOptions("auto", SlotRule(4)))
    with pytest.raises(ConfigError, match="choose one of fixed, annealing, exact, drain"):
        make_allocator("drian", AllocatorOptions("auto", SlotRule(4)))
