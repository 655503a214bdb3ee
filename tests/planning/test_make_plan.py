"""Requests to plans: what suits what, what is refused, what every plan keeps."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.control.planning import make_plan, run_to_end
from heddle.errors import ConfigError
from heddle.planning.plan import AllocatorName, PlacerName, Plan, PlanRequest, PriceName, checked_lengths
from heddle.planning.profile import DegreeProfile, Profile
from heddle.planning.shipped import shipped_profiles

H100_8B = shipped_profiles().select("h100_sxm", "Qwen3-8B")
LENGTHS = np.random.default_rng(0).lognormal(7, 1, 200)


def ticking(step_s: float = 0.02) -> Callable[[], float]:
    """A clock that moves on at every look, so that deadlines come without waiting."""
    ticks = itertools.count()
    return lambda: next(ticks) * step_s


def make_request(**changes: Any) -> PlanRequest:
    """200 lengths on eight H100, with some fields changed."""
    return replace(PlanRequest(LENGTHS, 8, H100_8B), **changes)


def assert_is_plan(plan: Plan, request: PlanRequest) -> None:
    """All trajectories once, within the budget, priced and bounded consistently, workers in order."""
    lengths = checked_lengths(request.lengths)  # what is next to nothing counts as nothing
    members = [index for worker in plan.workers for index in worker.members.tolist()]
    assert sorted(members) == list(range(len(lengths)))
    assert sum(worker.tp_degree for worker in plan.workers) <= request.gpus
    for worker in plan.workers:
        assert np.all(np.diff(lengths[worker.members]) <= 0)
        assert abs(worker.first_length - (lengths[worker.members[0]] if worker.size else 0.0)) <= 1e-6
    assert plan.makespan_s == max((worker.seconds for worker in plan.workers), default=0.0)
    assert 0.0 <= plan.lower_bound_s <= plan.makespan_s
    assert all(plan.lower_bound_s <= other.makespan_s for other in plan.compared)
    order = [(-worker.tp_degree, -worker.first_length) for worker in plan.workers]
    assert order == sorted(order)


COMBINATIONS = [
    (AllocatorName.EXACT, None, PriceName.STATIC),
    (AllocatorName.EXACT, PlacerName.EXACT, PriceName.KV_AWARE),
    (AllocatorName.ANNEALING, None, PriceName.STATIC),
    (AllocatorName.ANNEALING, PlacerName.PRESORTED_DP, PriceName.KV_AWARE),
    (AllocatorName.ANNEALING, PlacerName.DRAIN, PriceName.DRAINING),
    (AllocatorName.FIXED, None, PriceName.STATIC),
    (AllocatorName.FIXED, PlacerName.PRESORTED_DP, PriceName.STATIC),
    (AllocatorName.FIXED, PlacerName.DRAIN, PriceName.DRAINING),
    (AllocatorName.DRAIN, None, PriceName.DRAINING),
]


@pytest.mark.parametrize(("allocator", "placer", "price"), COMBINATIONS)
def test_every_combination_gives_a_plan(
    allocator: AllocatorName, placer: PlacerName | None, price: PriceName
) -> None:
    """With the homogeneous pools beside it, and a time run to the end that the bound holds for as well."""
    fixed = 2 if allocator is AllocatorName.FIXED else None
    request = make_request(allocator=allocator, placer=placer, price=price, fixed_degree=fixed)
    plan = make_plan(request, ticking())

    assert_is_plan(plan, request)
    assert plan.price is price
    assert [other.name for other in plan.compared] == ["fix-1", "fix-2", "fix-4", "fix-8"]
    assert plan.solve_ms > 0
    if price is PriceName.DRAINING:
        assert run_to_end(plan, request) == plan.makespan_s
    if fixed is not None:
        assert [worker.tp_degree for worker in plan.workers] == [2, 2, 2, 2]


@pytest.mark.parametrize("allocator", [AllocatorName.EXACT, AllocatorName.DRAIN])
def test_joint_planners_are_never_worse_than_a_homogeneous_pool(allocator: AllocatorName) -> None:
    """At their own price."""
    plan = make_plan(make_request(allocator=allocator), ticking())
    assert all(plan.makespan_s <= other.makespan_s for other in plan.compared)


def test_drain_beats_what_others_plan_when_run_to_the_end() -> None:
    """The judge is the same for all: groups are run event by event."""
    drain = make_request(slots_per_gpu=64)
    best = run_to_end(make_plan(drain, ticking(0.001)), drain)
    for allocator, placer, price in COMBINATIONS[:4]:
        other = make_request(slots_per_gpu=64, allocator=allocator, placer=placer, price=price)
        assert best <= run_to_end(make_plan(other, ticking()), other)


@pytest.mark.parametrize("allocator", [AllocatorName.EXACT, AllocatorName.ANNEALING, AllocatorName.DRAIN])
def test_lengths_at_the_edge_of_numbers_are_no_trouble(allocator: AllocatorName) -> None:
    """Hardly any token, none, and as many as are accepted."""
    for lengths in ([5e-324, 0.0], [1e12, 5e-324], [0.0] * 3):
        request = make_request(lengths=lengths, allocator=allocator)
        assert_is_plan(make_plan(request, ticking()), request)


def test_comparison_can_be_left_out() -> None:
    """And a fixed pool alone may have its degree beside the allowed ones."""
    request = make_request(
        allocator=AllocatorName.FIXED, fixed_degree=4, degrees=(1,), compare=False, lengths=[5.0, 7.0]
    )
    plan = make_plan(request, ticking())
    assert plan.compared == ()
    assert [worker.tp_degree for worker in plan.workers] == [4, 4]
    assert_is_plan(plan, request)


@pytest.mark.parametrize(("allocator", "placer", "price"), COMBINATIONS)
def test_no_trajectories_take_no_time(
    allocator: AllocatorName, placer: PlacerName | None, price: PriceName
) -> None:
    """The right empty plan: no work, no seconds."""
    fixed = 2 if allocator is AllocatorName.FIXED else None
    request = make_request(lengths=[], allocator=allocator, placer=placer, price=price, fixed_degree=fixed)
    plan = make_plan(request, ticking())

    assert_is_plan(plan, request)
    assert (plan.makespan_s, plan.lower_bound_s) == (0.0, 0.0)
    assert all(worker.size == 0 for worker in plan.workers)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lengths": [1.0, -2.0]}, "length 1 must be between 0"),
        ({"lengths": [float("nan")]}, "length 0 must be between 0"),
        ({"lengths": [float("inf")]}, "length 0 must be between 0"),
        ({"lengths": [[1.0], [2.0]]}, "flat list"),
        ({"lengths": ["many"]}, "must be numbers"),
        ({"gpus": 0}, "budget must be 1 to"),
        ({"degrees": (16,), "gpus": 16}, "no degree 16"),
        ({"degrees": (8,), "gpus": 4}, "degree 8 exceeds the budget of 4"),
        ({"context_tokens": -1.0}, "context length"),
        ({"context_tokens": 1e9}, "no memory"),
        ({"slots_per_gpu": 0}, "slots_per_gpu"),
        ({"kv_heads": 0}, "kv_heads"),
        ({"deadline_s": float("nan")}, "deadline"),
        ({"deadline_s": -1.0}, "deadline"),
        ({"seed": -1}, "seed"),
        ({"min_workers": 2}, "cannot limit the number of workers"),
        ({"allocator": AllocatorName.EXACT, "min_workers": 9}, "cannot be 9 to 8 workers"),
        ({"allocator": AllocatorName.EXACT, "max_workers": 0}, "cannot be 1 to 0 workers"),
        ({"allocator": AllocatorName.FIXED}, "needs the degree"),
        ({"fixed_degree": 2}, "means allocator fixed"),
        ({"placer": PlacerName.EXACT}, "places by itself"),
        ({"allocator": AllocatorName.EXACT, "placer": PlacerName.PRESORTED_DP}, "places by itself"),
        ({"price": PriceName.STATIC}, "does not solve for the price static"),
        ({"allocator": AllocatorName.EXACT, "price": PriceName.DRAINING}, "places by itself"),
    ],
)
def test_nonsense_is_refused(changes: dict[str, object], message: str) -> None:
    """With a message that names what is wrong."""
    with pytest.raises(ConfigError, match=message):
        make_plan(make_request(**changes), ticking())


@settings(max_examples=60)
@given(
    st.lists(st.one_of(st.integers(-1, 50), st.floats()), max_size=12),
    st.integers(-1, 9),
    st.lists(st.tuples(st.integers(1, 9), st.floats(1e-4, 10)), min_size=1, max_size=4),
    st.sets(st.integers(1, 9), min_size=1, max_size=3),
    st.sampled_from(COMBINATIONS),
    st.one_of(st.none(), st.integers(-1, 4)),
)
def test_any_request_is_a_plan_or_a_config_error(
    lengths: list[float],
    gpus: int,
    points: list[tuple[int, float]],
    degrees: set[int],
    combination: tuple[AllocatorName, PlacerName | None, PriceName],
    slots: int | None,
) -> None:
    """Gappy and non-monotone tables, odd degrees, hopeless budgets, unusable lengths."""
    allocator, placer, price = combination
    try:
        profile = Profile("g", "m", 1.0, tuple(DegreeProfile.measured(d, points) for d in sorted(degrees)))
        fixed = min(degrees) if allocator is AllocatorName.FIXED else None
        request = PlanRequest(
            lengths,
            gpus,
            profile,
            placer=placer,
            allocator=allocator,
            price=price,
            fixed_degree=fixed,
            slots_per_gpu=slots,
            deadline_s=0.1,
        )
        plan = make_plan(request, ticking())
    except ConfigError:
        return
    assert_is_plan(plan, request)
