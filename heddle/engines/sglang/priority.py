"""From the control plane's ranks to the few priorities that a server should see.

A rank is a float in the units of its scheduler: tokens, levels, arrivals. A server orders by integers, makes
a metric label of each, and preempts at any difference above its threshold. So ranks are put into levels, each
twice as wide as the one nearer to zero: nobody loses a slot to a trajectory that is hardly longer.
"""

from __future__ import annotations

import math

LEVELS = 32
"""Levels are ``-LEVELS // 2`` to ``LEVELS // 2 - 1``, which leaves the lowest to warm-ups."""

WARM_UP_LEVEL = -LEVELS // 2
"""Below every generation: a warm-up waits until nobody else does."""


def running_slots(slots: int, native_share: float | None) -> int:
    """Of a worker's slots, those that its server runs at once; all where the coordinator preempts."""
    return slots if native_share is None else max(1, math.floor(slots * native_share))


def priority_level(rank: float) -> int:
    """The level of a rank; monotone, 0 for a rank of magnitude below 1."""
    bound = LEVELS // 2 - 1
    magnitude = abs(rank)
    level = bound if math.isinf(magnitude) else min(bound, math.floor(math.log2(magnitude + 1.0)))
    return level if rank >= 0 else -level
