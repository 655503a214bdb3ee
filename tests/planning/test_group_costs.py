"""The three prices of a group, and the draining one against a batch run event by event."""

from __future__ import annotations

import numpy as np
import pytest
from exhaustive import make_draining_cost, run_batch
from hypothesis import given
from hypothesis import strategies as st

from heddle.errors import ConfigError
from heddle.planning.cost import draining_cost, kv_aware_cost, static_cost
from heddle.planning.kernels.draining import extension
from heddle.planning.profile import DegreeProfile, Profile

PROFILE = Profile(
    "g",
    "m",
    100.0,
    (
        DegreeProfile.measured(1, [(1, 1.0), (2, 1.5), (4, 2.5)], kv_capacity_tokens=200),
        DegreeProfile.measured(2, [(1, 0.5), (4, 1.0)], slots=4),
    ),
)


def test_static_prices_the_longest_at_the_interference_of_all() -> None:
    """``L_first * T * F(size)``; caps are ignored."""
    cost = static_cost(PROFILE, (2, 1), 4)

    assert cost.seconds(1, np.array([10.0, 1.0, 1.0, 1.0])) == 25.0
    assert cost.seconds(2, np.array([10.0])) == 5.0
    assert cost.seconds(2, np.empty(0)) == 0.0
    with pytest.raises(ConfigError, match="degree 4 has no price; priced are 2, 1"):
        cost.seconds(4, np.array([1.0]))


def test_kv_aware_makes_wait_what_does_not_fit() -> None:
    """Two of 100 tokens fit degree 1, so that six take three times as long as two."""
    cost = kv_aware_cost(PROFILE, (1,), 6)

    assert cost.steps[0].tolist() == [0.0, 1.0, 1.5, 2.25, 3.0, 3.75, 4.5]
    assert kv_aware_cost(PROFILE, (1,), 6, slots_per_gpu=1).steps[0].tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert kv_aware_cost(PROFILE, (2,), 6).steps[0][[4, 6]].tolist() == [1.0, 1.5]


def test_draining_batches_get_faster_as_members_finish() -> None:
    """Two tokens at batch 2, then eight alone; and with a cap of two, 4 waits for 5 and starts at 5."""
    cost = draining_cost(PROFILE, (2, 1), 3, context_tokens=50.0)
    assert cost.caps.tolist() == [3, 3]
    assert cost.seconds(1, np.array([10.0, 2.0])) == 2 * 1.5 + 8 * 1.0
    capped = draining_cost(PROFILE, (1,), 3)
    assert capped.caps.tolist() == [2]
    assert capped.seconds(1, np.array([10.0, 5.0, 4.0])) == 9 * 1.5 + 1 * 1.0


def test_impossible_concurrency_is_refused() -> None:
    """No slots, or no memory for one."""
    with pytest.raises(ConfigError, match="slots_per_gpu"):
        draining_cost(PROFILE, (1,), 3, slots_per_gpu=0)
    with pytest.raises(ConfigError, match="no memory"):
        kv_aware_cost(PROFILE, (1,), 3, context_tokens=201.0)


@given(
    st.lists(st.integers(0, 30), max_size=14),
    st.lists(st.integers(0, 4), min_size=15, max_size=15),
    st.integers(1, 15),
)
def test_group_time_equals_the_batch_run_event_by_event(
    tokens: list[int], rises: list[int], cap: int
) -> None:
    """Whole numbers make both sums exact, so they are equal and not merely close."""
    steps = np.concatenate([[0.0], 1 + np.cumsum(rises)]).astype(float)
    cost = make_draining_cost(np.random.default_rng(0), (1,), 14)
    cost.steps[0] = steps[:15]
    cost.caps[0] = min(cap, 14)
    lengths = np.array(sorted(tokens, reverse=True), dtype=float)

    expected = run_batch([float(t) for t in tokens], lambda batch: float(steps[batch]), min(cap, 14))
    assert cost.seconds(1, lengths) == expected


@given(st.lists(st.integers(0, 30), min_size=1, max_size=12), st.integers(0, 11), st.integers(0, 99))
def test_group_time_never_falls_when_a_member_comes_or_grows(tokens: list[int], at: int, seed: int) -> None:
    """The monotonicity on which reach, bound and local search rely."""
    cost = make_draining_cost(np.random.default_rng(seed), (1,), 13)
    before = cost.seconds(1, np.array(sorted(tokens, reverse=True), dtype=float))
    grown = list(tokens)
    grown[at % len(grown)] += 3

    assert cost.seconds(1, np.array(sorted([*tokens, 5], reverse=True), dtype=float)) >= before
    assert cost.seconds(1, np.array(sorted(grown, reverse=True), dtype=float)) >= before


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=14),
    st.integers(0, 13),
    st.integers(0, 400),
    st.integers(0, 99),
)
def test_extension_is_the_longest_group_within_the_bound(
    tokens: list[int], start: int, bound: int, seed: int
) -> None:
    """Below the cap and beyond it, where the first guess may be too long or too short."""
    cost = make_draining_cost(np.random.default_rng(seed), (1,), 14)
    lengths = np.array(sorted(tokens, reverse=True), dtype=float)
    start = min(start, len(lengths) - 1)
    fitting = [
        size
        for size in range(len(lengths) - start + 1)
        if cost.seconds(1, lengths[start : start + size]) <= bound
    ]
    assert extension(lengths, cost.steps[0], int(cost.caps[0]), start, float(bound), True) == max(fitting)
