"""Where evidence about the length of a trajectory comes from, one file each.

Evidence is columns of numbers that are 0 where nothing is known; a regression learns what they are worth.
A column that estimates is a *deviation*, the estimated logarithm of the remaining tokens less the mean at
that step, or *absolute*, that logarithm itself: then the mean is taken off when the evidence is used. That
may be long after it was seen, and in the first batch of a workload no mean is known before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from heddle.predict.buckets import Floats, Ints
from heddle.predict.point import Point
from heddle.types import JsonWritable, Prediction, TrajectoryId


@dataclass(frozen=True, slots=True)
class Context:
    """What is known of the workload as a whole; arrays have one entry a point."""

    log_total: float
    """Mean of the logarithm of a trajectory's tokens."""
    deviation: float
    """Standard deviation of that logarithm."""
    buckets: Ints
    """Of the steps done."""
    levels: Floats
    """Mean logarithm of what remains after so many steps."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A trajectory at its own end, with what was known at each of its remembered points."""

    points: Sequence[Point]
    """From the first to the last; never empty."""
    buckets: Ints
    residuals: Floats
    """At each point: logarithm of what remained less the mean at that step."""
    total_tokens: int
    surprise: float
    """Logarithm of its tokens less the mean that was known before."""


class Source(Protocol):
    """One kind of evidence. Deterministic and bounded in memory."""

    @property
    def name(self) -> str: ...

    @property
    def prior(self) -> Sequence[float]:
        """Weight of each column before anything is learned."""
        ...

    @property
    def absolute(self) -> bool:
        """Whether its columns are logarithms of 1 + remaining tokens; 0 still says that nothing is known."""
        ...

    def fill(self, points: Sequence[Point], context: Context, rows: Floats) -> None:
        """Write what is known of each point; ``rows``: zeros of shape (points, columns)."""
        ...

    def observe_step(self, point: Point, context: Context) -> None:
        """A step was generated."""
        ...

    def observe_estimate(self, point: Point, estimate: Prediction) -> None:
        """A model outside of the control plane estimated the trajectory as it was at ``point``."""
        ...

    def observe_ended(self, point: Point, surprise: float) -> None:
        """A trajectory reached its own end just now. ``point``: how it stood last; ``surprise``: logarithm
        of its tokens less the mean of the workload."""
        ...

    def learn(self, ended: Ended) -> None:
        """The ending's turn to be learned from: later, in the order of beginnings."""
        ...

    def forget(self, trajectory_id: TrajectoryId) -> None:
        """A trajectory ended in another way."""
        ...

    def relearn(self) -> None:
        """The workload changed its nature: what was learned of it counts little from now on."""
        ...

    def save(self) -> JsonWritable: ...

    def restore(self, state: JsonWritable) -> None:
        """Raises ``pydantic.ValidationError`` for a foreign state."""
        ...


class SilentSource:
    """Learns nothing and keeps nothing; sources override what they do have."""

    absolute = False

    def observe_step(self, point: Point, context: Context) -> None:
        """Nothing to learn."""

    def observe_estimate(self, point: Point, estimate: Prediction) -> None:
        """Not for this source."""

    def observe_ended(self, point: Point, surprise: float) -> None:
        """Nothing to learn at once."""

    def learn(self, ended: Ended) -> None:
        """Nothing to learn."""

    def forget(self, trajectory_id: TrajectoryId) -> None:
        """Nothing is remembered."""

    def relearn(self) -> None:
        """Nothing was learned."""

    def save(self) -> JsonWritable:
        """There is nothing to save."""
        return None

    def restore(self, state: JsonWritable) -> None:
        """There is nothing to restore."""
