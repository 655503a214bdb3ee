"""How many tokens remain on average: the mean, which the long ones decide.

The median tells what a typical trajectory still does, and ranks trajectories as a whole. Who will be among
the longest is another question: a chance in ten of ten times the tokens doubles the mean and leaves the
median. So the mean is estimated apart, by three opinions on it, and what each counts for is learned online
from their squared errors in tokens, which the long ones dominate, too:

- the mean of what remained after as many steps;
- that mean times what the regression on logarithms says of the trajectory;
- that mean times what a regression on tokens themselves says of it.

Source of the weights: exponentially weighted forecasters; Cesa-Bianchi and Lugosi, "Prediction, Learning,
and Games" (2006), chapter 2.
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

OPINIONS = 3

RATE = 1.0
"""How fast an opinion that errs loses its weight."""

HALF_LIFE = 500.0
"""Trajectories after which an error counts half."""

WORST = 10.0
"""Most that one trajectory can count against an opinion, in mean squared errors of the mean."""

FURTHEST = 2.0
"""Logarithm of the factor by which an opinion may differ from the mean of the step."""


@dataclass(slots=True)
class _State:
    counts: list[float] = field(default_factory=lambda: [0.0] * MOST_CELLS)
    means: list[float] = field(default_factory=lambda: [0.0] * MOST_CELLS)
    """Remaining tokens, by cell."""
    spread: float = 0.0
    """Mean squared error of the mean of the step."""
    excess: float = 1.0
    """Mean of the factor by which the second opinion exceeds the mean of the step."""
    judged: float = 0.0
    """Trajectories that ``spread`` and ``excess`` remember."""
    losses: list[float] = field(default_factory=lambda: [0.0] * OPINIONS)
    """Of each opinion: squared errors in units of ``spread``, faded."""


_STATE: TypeAdapter[_State] = TypeAdapter(_State)


class Expectation:
    """The opinions of one workload, and what they proved to be worth."""

    def __init__(self) -> None:
        self._state = _State()
        self._table: Floats | None = None
        self._shares: list[float] | None = None
        """Weights of the opinions, until one is judged again."""

    def relative(self, cells: Ints, remaining: Floats) -> Floats:
        """By which share of the mean of its step each exceeds it: what a regression on tokens learns."""
        return remaining / self._means(cells) - 1.0

    def estimate(self, cells: Ints, deviations: Floats, excess: Floats) -> Floats:
        """Remaining tokens, one number a point.

        ``deviations``: of the logarithm from the mean of its step, as estimated; ``excess``: of the tokens,
        as a share of their mean.
        """
        typical, linear = self._ratios(deviations, excess)
        known, by_typical, by_linear = self._weights()
        estimate: Floats = self._means(cells) * (known + by_typical * typical + by_linear * linear)
        return estimate

    def judge(self, cells: Ints, deviations: Floats, excess: Floats, remaining: Floats) -> None:
        """The points of one trajectory, judged by what was known before it."""
        state, means = self._state, self._means(cells)
        typical, linear = self._ratios(deviations, excess)
        opinions = np.array((means, means * typical, means * linear))
        opinions -= remaining
        opinions *= opinions
        errors = (np.add.reduce(opinions, axis=1) / len(cells)).tolist()
        state.judged = min(state.judged + 1.0, MEMORY)
        state.spread += (errors[0] - state.spread) / state.judged
        factor = state.excess * float(np.add.reduce(typical) / len(cells))
        state.excess += (factor - state.excess) / state.judged
        scale = max(state.spread, 1.0)
        fade = 0.5 ** (1.0 / HALF_LIFE)
        self._shares = None
        state.losses = [
            fade * loss + min(error / scale, WORST) for loss, error in zip(state.losses, errors, strict=True)
        ]

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
        state.losses = [0.0] * OPINIONS
        self._table = self._shares = None

    def save(self) -> Json:
        """Everything."""
        return asdict(self._state)

    def restore(self, state: Json) -> None:
        """Raises ``pydantic.ValidationError``."""
        self._state, self._table, self._shares = _STATE.validate_python(state), None, None

    def _ratios(self, deviations: Floats, excess: Floats) -> tuple[Floats, Floats]:
        """Of the second and of the third opinion to the first."""
        far = math.exp(FURTHEST)
        typical = np.exp(np.minimum(np.maximum(deviations, -FURTHEST), FURTHEST)) / self._state.excess
        return typical, np.minimum(np.maximum(1.0 + excess, 1.0 / far), far)

    def _weights(self) -> list[float]:
        """Of the opinions; their sum is 1."""
        if self._shares is None:
            least = min(self._state.losses)
            shares = [math.exp(RATE * (least - loss)) for loss in self._state.losses]
            whole = sum(shares)
            self._shares = [share / whole for share in shares]
        return self._shares

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
