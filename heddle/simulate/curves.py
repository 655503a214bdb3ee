"""Seconds of decoding steps over batch and context, and their sums while contexts grow, in closed form.

Each step makes every context one token longer, so a batch of ``b`` whose mean context is ``c`` takes ``y(b,
c) + y(b, c + 1) + ... `` seconds. ``y`` is linear in ``c`` between measured contexts, and the sum of a linear
function over whole steps is its integral from half a step before the first to half a step after the last. So
any number of steps costs two evaluations of an integral, and how many fit into a time follows from its
inverse. Where a sum passes a measured context the integral rounds the corner within one step: less than the
change of slope times an eighth.

Below the smallest measured context the smallest one counts, beyond the largest the last slope goes on:
attention is linear in the context, and a speed that nobody has measured is not promised.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heddle.planning.profile import DegreeProfile


@dataclass(frozen=True, slots=True)
class _Row:
    """One batch size: values and slopes from each knot on, and the integral up to it."""

    values: list[float]
    slopes: list[float]
    sums: list[float]


class StepCurves:
    """One degree. Rows exist for batches up to ``most``."""

    __slots__ = ("_knots", "_rows")

    def __init__(self, contexts: Sequence[float], profiles: Sequence[DegreeProfile], most: int) -> None:
        """``profiles`` holds the step times at each of ``contexts``, which ascend.

        Where a table dips it is lifted by a running maximum, over batches and over contexts.
        """
        table = np.stack([profile.step_table(most) for profile in profiles], axis=1)
        table = np.maximum.accumulate(table, axis=1)
        self._knots = [0.0, *(context for context in contexts if context > 0)]
        first = table[:, :1] if contexts[0] > 0 else table[:, :0]
        values = np.concatenate([first, table], axis=1)
        widths = np.diff(self._knots)
        slopes = np.diff(values, axis=1) / widths
        last = slopes[:, -1:] if len(contexts) > 1 else np.zeros((len(values), 1))
        slopes = np.concatenate([slopes, last], axis=1)
        pieces = widths * (values[:, :-1] + values[:, 1:]) / 2
        sums = np.concatenate([np.zeros((len(values), 1)), np.cumsum(pieces, axis=1)], axis=1)
        self._rows = [
            _Row(*map(list, rows))
            for rows in zip(values.tolist(), slopes.tolist(), sums.tolist(), strict=True)
        ]

    @property
    def weights_s(self) -> float:
        """A step that only passes over the weights: the cheapest there is."""
        return self._rows[1].values[0]

    def step_s(self, batch: int, context_tokens: float) -> float:
        """Seconds of one step of ``batch`` at this mean context."""
        row, index = self._rows[batch], self._piece(context_tokens)
        return row.values[index] + (context_tokens - self._knots[index]) * row.slopes[index]

    def seconds(self, batch: int, context_tokens: float, steps: float) -> float:
        """Of ``steps`` steps that begin at this mean context."""
        row, begin = self._rows[batch], context_tokens - 0.5
        return self._integral(row, begin + steps) - self._integral(row, begin)

    def steps_within(self, batch: int, context_tokens: float, seconds: float) -> float:
        """How many steps, and what part of the next one, are done after ``seconds``."""
        row, begin = self._rows[batch], context_tokens - 0.5
        wanted = self._integral(row, begin) + seconds
        index = max(0, bisect_right(row.sums, wanted) - 1)
        rest, value, slope = wanted - row.sums[index], row.values[index], row.slopes[index]
        # The root of value * d + slope / 2 * d^2 = rest, in the form that survives a slope of 0.
        distance = 2.0 * rest / (value + math.sqrt(max(0.0, value * value + 2.0 * slope * rest)))
        return self._knots[index] + distance - begin

    def _piece(self, context_tokens: float) -> int:
        return max(0, bisect_right(self._knots, context_tokens) - 1)

    def _integral(self, row: _Row, context_tokens: float) -> float:
        index = self._piece(context_tokens)
        distance = context_tokens - self._knots[index]
        return row.sums[index] + distance * (row.values[index] + 0.5 * distance * row.slopes[index])
