"""How long workers will take to drain, and what one trajectory more or less changes.

A worker with members of descending lengths ``l_1, l_2, ...`` drains within the sum of ``l_j * w_j``: up to
its cap (slots, memory) ``w_j`` is what the ``j``-th member adds to a step, beyond it a step of the full batch
over the cap. Prefix and suffix sums give the same sum with a member put in or taken out in O(log n).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from heddle.planning.profile import DegreeProfile, Floats
from heddle.types import WorkerView


class Weights:
    """``w`` of one degree, for any cap up to ``most`` and any number of members up to it."""

    __slots__ = ("_rises", "_steps")

    def __init__(self, degree: DegreeProfile, most: int) -> None:
        self._steps = degree.step_table(most)
        self._rises = np.diff(self._steps)

    @property
    def most(self) -> int:
        """Members that weights exist for."""
        return len(self._rises)

    def step_s(self, batch: int) -> float:
        """Seconds of a step; ``batch`` from 0 to ``most``."""
        return float(self._steps[batch])

    def of(self, cap: int, members: int) -> Floats:
        """Shape ``(members,)``."""
        weights = self._rises[:members].copy()
        weights[cap:] = self._steps[cap] / cap
        return weights


class Drain:
    """One worker as it was when it was looked at."""

    __slots__ = ("_before", "_lengths", "_shifted_down", "_shifted_up", "_weights", "seconds")

    def __init__(self, lengths: Sequence[float], weights: Weights, cap: int) -> None:
        """``lengths`` in any order; ``weights`` for one member more at least."""
        ascending = np.sort(np.asarray(lengths, np.float64))
        self._lengths = ascending
        self._weights = weights.of(cap, len(ascending) + 1)
        descending = ascending[::-1]
        self._before = np.concatenate([[0.0], np.cumsum(descending * self._weights[:-1])])
        self._shifted_up = _suffix_sums(descending * self._weights[1:])
        self._shifted_down = _suffix_sums(descending[1:] * self._weights[:-2])
        self.seconds = float(self._before[-1])

    def with_member(self, length: float) -> float:
        """Seconds with one more."""
        place = self._place(length)
        return float(self._before[place] + length * self._weights[place] + self._shifted_up[place])

    def without_member(self, length: float) -> float:
        """Seconds without one of this length, which must be among them (or is taken for the next longer)."""
        if not len(self._lengths):
            return 0.0
        place = max(0, self._place(length) - 1)
        return float(self._before[place] + self._shifted_down[place])

    def _place(self, length: float) -> int:
        """How many are as long or longer."""
        return len(self._lengths) - int(np.searchsorted(self._lengths, length, side="left"))


def tokens_within(lengths: Sequence[float], weights: Weights, cap: int, seconds: float) -> float:
    """Tokens that each member generates within ``seconds``, or all it has; whoever waits, waits in turns.

    ``lengths`` ascend. Every member gets the same, because in the mean those that wait are not behind.
    """
    done = 0.0
    for ended, length in enumerate(lengths):
        members = len(lengths) - ended
        running = min(members, cap)
        token_s = weights.step_s(running) * members / running
        if (length - done) * token_s >= seconds:
            return done + seconds / token_s
        seconds -= (length - done) * token_s
        done = length
    return done


def cap_of(worker: WorkerView, context_tokens: float) -> int:
    """Members that run at once, if each holds this much context."""
    if worker.kv_limit_tokens is None or context_tokens <= 0:
        return worker.slots
    return max(1, min(worker.slots, int(worker.kv_limit_tokens / context_tokens)))


def _suffix_sums(values: Floats) -> Floats:
    """``out[i] = sum(values[i:])``, with a 0 at the end."""
    sums = np.concatenate([[0.0], np.cumsum(values[::-1])])[::-1]
    return np.asarray(sums)
