"""Trust: how far the latest predictions proved right, so that others may lean on them as far as that."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from pydantic import TypeAdapter

from heddle.predict.buckets import Floats
from heddle.types import JsonWritable, Trust

WINDOW = 128
"""Finished trajectories that are judged."""

TAIL = 0.2
"""Share of trajectories that counts as long."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """One finished trajectory."""

    predicted_tokens: float
    """Of the whole trajectory, as predicted after its first step; before it, where it had but one."""
    true_tokens: float
    held: float
    """Share of the intervals between its quantiles 0.1 and 0.9 that held the truth."""


_STATE: TypeAdapter[list[tuple[float, float, float]]] = TypeAdapter(list[tuple[float, float, float]])


class TrustWindow:
    """The judgements of one workload."""

    def __init__(self) -> None:
        self._judged: deque[Judgement] = deque(maxlen=WINDOW)
        self._trust: Trust | None = None

    def add(self, judgement: Judgement) -> None:
        """A trajectory finished."""
        self._judged.append(judgement)
        self._trust = None

    def drop_all_but(self, newest: int) -> None:
        """What came before tells nothing any more."""
        while len(self._judged) > newest:
            self._judged.popleft()
        self._trust = None

    def trust(self) -> Trust | None:
        """Computed once after each change; ``None`` before the first ending."""
        if self._trust is None and self._judged:
            self._trust = self._compute()
        return self._trust

    def save(self) -> JsonWritable:
        return [[j.predicted_tokens, j.true_tokens, j.held] for j in self._judged]

    def restore(self, state: JsonWritable) -> None:
        """Raises ``pydantic.ValidationError``."""
        self._judged = deque((Judgement(*row) for row in _STATE.validate_python(state)), maxlen=WINDOW)
        self._trust = None

    def _compute(self) -> Trust:
        predicted = np.array([j.predicted_tokens for j in self._judged])
        true = np.array([j.true_tokens for j in self._judged])
        return Trust(
            tail_recall=tail_recall(predicted, true, TAIL),
            rank_correlation=spearman(predicted, true),
            coverage=float(np.mean([j.held for j in self._judged])),
            samples=len(self._judged),
        )


def tail_recall(predicted: Floats, true: Floats, share: float) -> float:
    """Of the longest ``share`` (at least one), the part that was predicted to be among them."""
    count = max(1, round(share * len(true)))
    longest = np.argsort(-true, kind="stable")[:count]
    expected = np.argsort(-predicted, kind="stable")[:count]
    return len(np.intersect1d(longest, expected)) / count


def spearman(first: Floats, second: Floats) -> float:
    """Rank correlation, ties at their mean rank; 0 where one of both is constant."""
    return pearson(ranks(first), ranks(second))


def pearson(first: Floats, second: Floats) -> float:
    """Linear correlation; 0 where one of both is constant."""
    a, b = first - first.mean(), second - second.mean()
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / scale if scale > 0.0 else 0.0


def ranks(values: Floats) -> Floats:
    """From 0, equal values at the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    mean: Floats = (ends - 0.5 * (counts + 1))[inverse]
    return mean
