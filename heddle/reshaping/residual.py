"""How much a trajectory has left, by what trajectories before it had when they had come as far.

Within a batch the ones that have finished are the short ones, so their lengths say nothing of those that
still run. What is used of them are the lengths beyond the survivor's own: in the first batch there are
hardly any, so nothing is expected of anybody; later ones can look at whole batches.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque

KEPT = 4096
"""Lengths that are remembered, the latest ones."""
FEWEST = 4
"""Longer ones without which nothing is said: three would be a guess."""


class Residuals:
    """Lengths of trajectories that reached their own end. O(log n) comparisons a question or a length."""

    def __init__(self) -> None:
        self._latest: deque[int] = deque()
        self._ascending: list[int] = []

    def observe(self, tokens: int) -> None:
        """One has ended with so many."""
        if len(self._latest) == KEPT:
            oldest = self._latest.popleft()
            del self._ascending[bisect_right(self._ascending, oldest) - 1]
        self._latest.append(tokens)
        insort(self._ascending, tokens)

    def median(self, generated_tokens: int) -> float:
        """Left to one that has generated so many: the lower median of those that went further, else 0.0."""
        first = bisect_right(self._ascending, generated_tokens)
        longer = len(self._ascending) - first
        if longer < FEWEST:
            return 0.0
        return float(self._ascending[first + (longer - 1) // 2] - generated_tokens)
