"""Whether those that run outlive what was said of them: a longer workload shows before any of it has ended.

The first to end are the short ones, so endings tell late that trajectories have become longer; but one that
has generated more than the quantile 0.95 of its first estimate is a miss already, however it goes on. Groups
are counted, not trajectories, since members are alike and one long group proves nothing; and in the order in
which they began, since those of a batch that are left at its end are always its longest.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import islice

from heddle.predict.point import Point
from heddle.types import GroupId, TrajectoryId

MOST_GROUPS = 64
"""Remembered; the one that began first goes first."""

JUDGED = 8
"""Groups that began last, of those with a member of which it is known whether it outlives its bound."""

TOO_MANY = 4.0
"""Of those groups, as the sum of the shares of their members; chance gives less than one."""


LONGEST = 50.0
"""Logarithm of tokens that nothing generates."""


@dataclass(slots=True)
class _Group:
    bounds: dict[TrajectoryId, float] = field(default_factory=dict)
    """Tokens that each open member was not to exceed in all; infinite for one that has."""
    held: int = 0
    """Members that ended within their bound."""
    outlived: int = 0

    @property
    def known(self) -> int:
        return self.held + self.outlived


class Outlived:
    """The latest groups of one workload."""

    def __init__(self) -> None:
        self._groups: OrderedDict[GroupId, _Group] = OrderedDict()

    def told(self, point: Point, log_most: float) -> None:
        """The first estimate of a trajectory: the logarithm of 1 + the tokens that it is still to generate at
        most. Later ones are a no-op."""
        group = self._groups.get(point.group_id)
        if group is None:
            group = self._groups[point.group_id] = _Group()
            if len(self._groups) > MOST_GROUPS:
                self._groups.popitem(last=False)
        if point.trajectory_id not in group.bounds:
            left = math.expm1(log_most) if log_most < LONGEST else math.inf
            group.bounds[point.trajectory_id] = point.generated_tokens + left

    def stepped(self, point: Point) -> bool:
        """So much was generated. True where too many have outlived their bounds for chance."""
        group = self._groups.get(point.group_id)
        if group is None or point.generated_tokens <= group.bounds.get(point.trajectory_id, math.inf):
            return False
        group.bounds[point.trajectory_id] = math.inf
        group.outlived += 1
        judged = islice((one for one in reversed(self._groups.values()) if one.known), JUDGED)
        return sum(one.outlived / one.known for one in judged) >= TOO_MANY

    def ended(self, point: Point) -> None:
        """By itself."""
        group = self._groups.get(point.group_id)
        if group is not None and math.isfinite(group.bounds.pop(point.trajectory_id, math.inf)):
            group.held += 1

    def forget(self, trajectory_id: TrajectoryId) -> None:
        """It ended in another way."""
        for group in self._groups.values():
            group.bounds.pop(trajectory_id, None)

    def forget_all(self) -> None:
        """What was said is known to be wrong."""
        self._groups.clear()
