"""What remained on average after so many steps: the estimate that all evidence corrects.

Running means with a bounded memory: after ``MEMORY`` values each new one counts for 1 / ``MEMORY``, so that
the means follow a policy that drifts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from heddle.predict.buckets import COUNT, Floats

MEMORY = 400.0
"""Values that a mean remembers."""

BORROWED = 4.0
"""Weight of the neighbouring step's mean in a bucket's, in values."""


@dataclass(slots=True)
class Levels:
    """Per bucket of steps: means of log tokens, of steps and of tool seconds that remained."""

    counts: list[float] = field(default_factory=lambda: [0.0] * COUNT)
    tokens: list[float] = field(default_factory=lambda: [0.0] * COUNT)
    """Of log(1 + tokens)."""
    steps: list[float] = field(default_factory=lambda: [0.0] * COUNT)
    tool_seconds: list[float] = field(default_factory=lambda: [0.0] * COUNT)
    total_count: float = 0.0
    total_mean: float = 0.0
    """Of the logarithm of a whole trajectory's tokens."""
    total_square: float = 0.0

    def add_total(self, log_total: float) -> None:
        """A trajectory ended with exp(``log_total``) tokens."""
        self.total_count = min(self.total_count + 1.0, MEMORY)
        rate = 1.0 / self.total_count
        self.total_mean += (log_total - self.total_mean) * rate
        self.total_square += (log_total * log_total - self.total_square) * rate

    def add(
        self,
        buckets: Sequence[int],
        log_tokens: Sequence[float],
        steps: Sequence[int],
        tools: Sequence[float],
    ) -> None:
        """What remained after several steps of one finished trajectory."""
        for bucket, tokens, left, seconds in zip(buckets, log_tokens, steps, tools, strict=True):
            count = self.counts[bucket] = min(self.counts[bucket] + 1.0, MEMORY)
            rate = 1.0 / count
            self.tokens[bucket] += (tokens - self.tokens[bucket]) * rate
            self.steps[bucket] += (left - self.steps[bucket]) * rate
            self.tool_seconds[bucket] += (seconds - self.tool_seconds[bucket]) * rate

    @property
    def total_deviation(self) -> float:
        """Standard deviation of the logarithm of the tokens; 1 while too little is known."""
        if self.total_count < 3.0:
            return 1.0
        return float(max(0.05, self.total_square - self.total_mean**2) ** 0.5)

    def table(self) -> Floats:
        """Expected log tokens, steps and tool seconds by bucket: shape (3, ``COUNT``).

        A bucket borrows from the one before it, so that one that nobody reached equals its neighbour.
        """
        shares = [BORROWED / (count + BORROWED) for count in self.counts]
        if self.counts[0]:
            shares[0] = 0.0
        return np.array(
            [
                _borrowing(self.total_mean, self.tokens, shares),
                _borrowing(self.steps[0], self.steps, shares),
                _borrowing(self.tool_seconds[0], self.tool_seconds, shares),
            ]
        )

    def relearn(self, count: float) -> None:
        """Trust what is known no more than ``count`` values: the next ones decide."""
        self.counts = [min(known, count) for known in self.counts]
        self.total_count = min(self.total_count, count)


def _borrowing(before: float, means: Sequence[float], shares: Sequence[float]) -> list[float]:
    """Each mean with its share of the one before it."""
    mixed = []
    for share, own in zip(shares, means, strict=True):
        before = share * before + (1.0 - share) * own
        mixed.append(before)
    return mixed
