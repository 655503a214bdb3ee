"""A longer workload is noticed before it ends; a long group and a long tail are not mistaken for one."""

from __future__ import annotations

import math

import pytest

from heddle.predict.outlived import JUDGED, TOO_MANY, Outlived
from heddle.predict.point import Point
from heddle.types import NO_STEP, GroupId, TrajectoryId

MOST = 1_000
SAMPLES = 4


def at(group: int, sample: int, tokens: int) -> Point:
    """One member of a group that has generated so many."""
    name = TrajectoryId(f"{group}-{sample}")
    return Point(name, GroupId(f"g{group}"), None, 1, tokens, 0, 0, 0.0, NO_STEP)


def begun(groups: int, *, log_most: float = math.log1p(MOST)) -> Outlived:
    """So many groups whose members are to generate ``MOST`` at most."""
    outlived = Outlived()
    for group in range(groups):
        for sample in range(SAMPLES):
            outlived.told(at(group, sample, 0), log_most)
    return outlived


def outlive(outlived: Outlived, group: int) -> bool:
    """All members of a group pass their bound; whether the last was one too many."""
    return [outlived.stepped(at(group, sample, MOST + 1)) for sample in range(SAMPLES)][-1]


def test_too_many_groups_that_outlive_their_bounds_are_another_workload() -> None:
    """Nobody has ended by then."""
    outlived = begun(16)
    assert [outlive(outlived, group) for group in range(4)] == [False, False, False, True]


def test_one_long_group_proves_nothing() -> None:
    """However often its members are heard of."""
    outlived = begun(16)
    assert not any(outlive(outlived, 0) for _ in range(10))


def test_the_tail_of_a_batch_is_no_other_workload() -> None:
    """The last to run are the longest: of 64 groups whose others have ended in time, 8 are left."""
    outlived = begun(64)
    for group in range(64):
        if group % 8:
            for sample in range(SAMPLES):
                outlived.ended(at(group, sample, MOST // 2))
    assert not any(outlive(outlived, group) for group in range(0, 64, 8))


@pytest.mark.parametrize("log_most", [math.inf, 700.0, 1e6])
def test_no_bound_is_never_outlived(log_most: float) -> None:
    """While intervals say nothing, nothing is known to be wrong."""
    outlived = begun(JUDGED, log_most=log_most)
    assert not any(outlive(outlived, group) for group in range(JUDGED))


def test_what_is_forgotten_does_not_count() -> None:
    """Neither members that were cancelled nor anything after another beginning."""
    outlived = begun(JUDGED)
    for group in range(JUDGED - round(TOO_MANY) + 1):
        for sample in range(SAMPLES):
            outlived.forget(at(group, sample, 0).trajectory_id)
    assert not any(outlive(outlived, group) for group in range(JUDGED))
    outlived.forget_all()
    assert not any(outlive(outlived, group) for group in range(JUDGED))
