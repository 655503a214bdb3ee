"""From measured trust to how far decisions go by predicted length: 0 not at all, 1 as if lengths were known.

Length-aware decisions put all long trajectories together, so they lose by those that they misfile: in a fluid
model with lognormal lengths contiguous placement gained 1.12x to 1.27x with known lengths, and lost to even
spreading already where one long trajectory in five was misfiled (tail recall 0.8). Hence nothing below that,
and everything only near perfection.
"""

from __future__ import annotations

from heddle.types import Trust

MIN_SAMPLES = 64
"""Finished trajectories before which nothing is believed: a recall of a fifth of fewer is a handful."""

RECALL = 0.8, 1.0
"""Tail recall at which trust begins, and at which it is full."""
CORRELATION = 0.7, 0.95
"""The same for the rank correlation."""
COVERAGE = 0.5, 0.7
"""The same for intervals of nominal coverage 0.8: one that is too sure of itself is hedged too little."""


def earned(trust: Trust | None) -> float:
    """The least of what recall, correlation and coverage have earned, in [0, 1]; 0 where nothing is known."""
    if trust is None or trust.samples < MIN_SAMPLES:
        return 0.0
    return min(
        _between(trust.tail_recall, *RECALL),
        _between(trust.rank_correlation, *CORRELATION),
        _between(trust.coverage, *COVERAGE),
    )


def _between(value: float, nothing: float, everything: float) -> float:
    return min(1.0, max(0.0, (value - nothing) / (everything - nothing)))
