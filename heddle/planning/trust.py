"""From measured trust to how far decisions go by predicted length: 0 not at all, 1 as if lengths were known.

*Placement.* Length-aware decisions put all long trajectories together, so they lose by those that they
misfile: in a fluid model with lognormal lengths contiguous placement gained 1.12x to 1.27x with known
lengths, and lost to even spreading already where one long trajectory in five was misfiled (tail recall 0.8).
Hence nothing below that, and everything only near perfection.

*Order.* To run the longest first lost nothing in that model at a rank correlation of 0.66, because a wrong
order of those that wait only delays somebody else. On recorded trajectories it is not so: with trust from a
correlation of 0.2 to 0.5, batches of 128 whose predictor had learned from an earlier one lost 1 % in the mean
(worst of 30: 11 %); from 0.6 to 0.9 nothing (worst 8 %). Hence a rougher order is enough than for placement,
but no rough one.
"""

from __future__ import annotations

from heddle.types import Trust

MIN_SAMPLES = 64
"""Finished trajectories before which nothing is believed: a recall of a fifth of fewer is a handful."""

RECALL = 0.8, 1.0
"""Tail recall at which trust begins, and at which it is full."""
CORRELATION = 0.7, 0.95
"""The same for the rank correlation."""
ORDER = 0.6, 0.9
"""The same for the rank correlation, where it is only about the order of those that wait."""
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


def earned_order(trust: Trust | None) -> float:
    """How far those that wait go by length: by the rank correlation alone, in [0, 1]."""
    if trust is None or trust.samples < MIN_SAMPLES:
        return 0.0
    return _between(trust.rank_correlation, *ORDER)


def _between(value: float, nothing: float, everything: float) -> float:
    return min(1.0, max(0.0, (value - nothing) / (everything - nothing)))
