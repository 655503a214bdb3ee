"""``siblings``: what the other members of the same group have shown.

A member that ended tells its length; one that runs tells that it is at least as long as it is, which is
evidence for a long group once most others have ended. Both count as deviations of the logarithm of the whole
length from the workload's mean, where the length of a running member is what a log-normal length of the
workload's mean and deviation is expected to be, given that it is longer than so much.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from heddle.predict.buckets import Floats
from heddle.predict.point import Point
from heddle.predict.sources import Context, SilentSource
from heddle.types import GroupId, TrajectoryId

MOST_GROUPS = 16_384
"""Groups remembered; the one longest without news goes first."""

DOUBT = 1.0
"""Members that the mean of the workload counts for in a group's."""

_SQRT2 = math.sqrt(2.0)
_DENSITY = 1.0 / math.sqrt(2.0 * math.pi)


@dataclass(slots=True)
class _Group:
    ended: int = 0
    ended_sum: float = 0.0
    """Of the surprises of those that ended."""
    running: dict[TrajectoryId, float] = field(default_factory=dict)
    """Expected surprise of each that runs, given how long it is already."""
    running_sum: float = 0.0


class Siblings(SilentSource):
    """Two columns: expected surprise of the group, and of its members that ended alone."""

    name = "siblings"
    prior = (0.5, 0.2)

    def __init__(self) -> None:
        self._groups: OrderedDict[GroupId, _Group] = OrderedDict()
        self._group_of: dict[TrajectoryId, GroupId] = {}

    def fill(self, points: Sequence[Point], context: Context, rows: Floats) -> None:
        groups, nothing = self._groups, (0.0, 0.0)
        if not groups:
            return
        pairs = [
            nothing if group is None else _evidence(group, point)
            for point in points
            for group in (groups.get(point.group_id),)
        ]
        rows[:] = pairs

    def observe_step(self, point: Point, context: Context) -> None:
        group = self._groups.get(point.group_id)
        if group is None:
            group = self._groups[point.group_id] = _Group()
            self._evict()
        self._group_of[point.trajectory_id] = point.group_id
        before = group.running.get(point.trajectory_id, 0.0)
        expected = _surprise_beyond(math.log1p(point.generated_tokens), context)
        group.running[point.trajectory_id] = expected
        group.running_sum += expected - before

    def observe_ended(self, point: Point, surprise: float) -> None:
        self.forget(point.trajectory_id)
        group = self._groups.get(point.group_id)
        if group is None:
            group = self._groups[point.group_id] = _Group()
            self._evict()
        self._groups.move_to_end(point.group_id)
        group.ended += 1
        group.ended_sum += surprise

    def forget(self, trajectory_id: TrajectoryId) -> None:
        group_id = self._group_of.pop(trajectory_id, None)
        group = None if group_id is None else self._groups.get(group_id)
        if group is not None:
            group.running_sum -= group.running.pop(trajectory_id, 0.0)

    def _evict(self) -> None:
        if len(self._groups) > MOST_GROUPS:
            _, gone = self._groups.popitem(last=False)
            for trajectory_id in gone.running:
                self._group_of.pop(trajectory_id, None)


def _evidence(group: _Group, point: Point) -> tuple[float, float]:
    own = group.running.get(point.trajectory_id)
    others = len(group.running) - (own is not None)
    running_sum = group.running_sum - (own or 0.0)
    ended = group.ended_sum / (group.ended + DOUBT)
    return (group.ended_sum + running_sum) / (group.ended + others + DOUBT), ended


def _surprise_beyond(log_tokens: float, context: Context) -> float:
    """Expected deviation of a normal logarithm from its mean, given that it is above ``log_tokens``."""
    z = (log_tokens - context.log_total) / context.deviation
    if z < -4.0:
        return 0.0
    above = 0.5 * math.erfc(z / _SQRT2)
    if above < 1e-6:
        return log_tokens - context.log_total
    return context.deviation * _DENSITY * math.exp(-0.5 * z * z) / above
