"""How many tokens remain on average: the mean, which the long ones decide.

The median tells what a typical trajectory still does, and ranks trajectories as a whole. Who will be among
the longest is another question: a chance in ten of ten times the tokens doubles the mean and leaves the
median. So the mean is estimated apart, as the mean of four opinions:

- what remained on average after as many steps;
- that mean times what the regression on logarithms says of the trajectory;
- that mean times what a regression on tokens themselves says of it;
- what was estimated first, less what was generated since: later evidence is about what a trajectory does just
  now, this is what it was taken for.

All count the same. Their squared errors are decided by a few giants, and weights learned from those are worse
than none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
from pydantic import TypeAdapter

from heddle.predict.buckets import MOST_CELLS, Floats, Ints
from heddle.types import Json

MEMORY = 400.0
"""Values that a mean remembers."""

BORROWED = 4.0
"""Weight of the mean before a cell in its own, in values."""

FURTHEST = 2.0
"""Logarithm of the factor by which an opinion may differ from the mean of the step."""

_FACTOR = math.exp(FURTHEST)


@dataclass(slots=True)
class _State:
    counts: list[float] = field(default_factory=lambda: [0.0] * MOST_CELLS)
    means: list[float] = field(default_factory=lambda: [0.0] * MOST_CELLS)
    """Remaining tokens, by cell."""
    excess: float = 1.0
    """Mean of the factor by which the regression on logarithms exceeds the mean of the step."""
    judged: float = 0.0
    """Trajectories that ``excess`` remembers."""


_STATE: TypeAdapter[_State] = TypeAdapter(_State)


class Expectation:
    """The mean of one workload's remaining tokens, after so many steps and for one trajectory."""

    def __init__(self) -> None:
        self._state = _State()
        self._table: Floats | None = None

    def relative(self, cells: Ints, remaining: Floats) -> Floats:
        """By which share of the mean of its step each exceeds it: what a regression on tokens learns."""
        return remaining / self._means(cells) - 1.0

    def estimate(self, cells: Ints, deviations: Floats, excess: Floats, first_left: Floats) -> Floats:
        """Remaining tokens, one number a point.

        ``deviations``: of the logarithm from the mean of its step, as estimated; ``excess``: of the tokens,
        as a share of their mean; ``first_left``: by the first estimate, NaN where there is none.
        """
        typical = _bounded(deviations) / self._state.excess
        linear = np.minimum(np.maximum(1.0 + excess, 1.0 / _FACTOR), _FACTOR)
        three = self._means(cells) * (1.0 + typical + linear)
        estimate: Floats = np.where(np.isnan(first_left), three / 3.0, (three + first_left) / 4.0)
        return estimate

    def judge(self, deviations: Floats) -> None:
        """What was said of the points of one trajectory that ended."""
        state = self._state
        state.judged = min(state.judged + 1.0, MEMORY)
        factor = float(np.add.reduce(_bounded(deviations)) / len(deviations))
        state.excess += (factor - state.excess) / state.judged

    def learn(self, cells: Sequence[int], remaining: Sequence[float]) -> None:
        """What remained at the points of one trajectory."""
        state = self._state
        for cell, tokens in zip(cells, remaining, strict=True):
            count = state.counts[cell] = min(state.counts[cell] + 1.0, MEMORY)
            state.means[cell] += (tokens - state.means[cell]) / count
        self._table = None

    def relearn(self, count: float) -> None:
        """Trust what is known no more than ``count`` values."""
        state = self._state
        state.counts = [min(known, count) for known in state.counts]
        state.judged = min(state.judged, count)
        self._table = None

    def save(self) -> Json:
        """Everything."""
        return asdict(self._state)

    def restore(self, state: Json) -> None:
        """Raises ``pydantic.ValidationError``."""
        self._state, self._table = _STATE.validate_python(state), None

    def _means(self, cells: Ints) -> Floats:
        """At least 1 token. A cell that nobody reached is like the one before it."""
        if self._table is None:
            self._table = self._smoothed()
        return self._table[cells]

    def _smoothed(self) -> Floats:
        table, borrowed = [], 0.0
        before = self._state.means[0]
        for count, mean in zip(self._state.counts, self._state.means, strict=True):
            if count:
                before = (count * mean + borrowed * before) / (count + borrowed)
            table.append(before)
            borrowed = BORROWED
        return np.maximum(table, 1.0)


def _bounded(deviations: Floats) -> Floats:
    """The factors that logarithms stand for."""
    return np.exp(np.minimum(np.maximum(deviations, -FURTHEST), FURTHEST))
