"""Steps that are told apart: each of the first few, then ever wider ranges.

Buckets share what is learned of means and errors, stages share a regression. Cells are finer: of each cell
one point of a trajectory is remembered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

STARTS = (0, 1, 2, 3, 4, 6, 9, 13, 19, 28, 41, 61, 91)
"""Least number of finished steps in each bucket."""

COUNT = len(STARTS)

STAGE_STARTS = (0, 1, 3, 6)
"""Least number of finished steps in each stage: from the prompt alone, early, late."""

STAGES = len(STAGE_STARTS)

LAST = 4096
"""Later steps are not told apart."""


def cell_of(steps_done: int) -> int:
    """The cell of a number of finished steps: its own below 16, then eight to each doubling."""
    shift = max(0, steps_done.bit_length() - 4)
    return 8 * shift + (steps_done >> shift)


MOST_CELLS = cell_of(LAST) + 1
"""Cells with a mean of their own."""


class Places(NamedTuple):
    """Where some numbers of finished steps belong; one entry each."""

    buckets: Ints
    stages: Ints
    cells: Ints
    """Below ``MOST_CELLS``."""


def _table() -> Ints:
    steps = np.arange(LAST + 1)
    buckets = np.searchsorted(STARTS, steps, side="right") - 1
    stages = np.searchsorted(STAGE_STARTS, steps, side="right") - 1
    return np.stack((buckets, stages, [cell_of(step) for step in steps.tolist()])).astype(np.intp)


_PLACES = _table()


def places_of(steps_done: Sequence[int]) -> Places:
    """Looked up at once: a batch asks for hundreds, and a single one must cost little."""
    if len(steps_done) == 1:
        step = min(steps_done[0], LAST)
        return Places(*_PLACES[:, step : step + 1])
    return Places(*_PLACES[:, np.minimum(steps_done, LAST)])
