"""Steps that are told apart: each of the first few, then ever wider ranges.

Buckets share what is learned. Cells are finer: of each cell one point of a trajectory is remembered.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

STARTS = (0, 1, 2, 3, 4, 6, 9, 13, 19, 28, 41, 61, 91)
"""Least number of finished steps in each bucket."""

COUNT = len(STARTS)

_INNER = np.array(STARTS[1:], dtype=np.float64)


def bucket_of(steps_done: Floats) -> Ints:
    """The bucket of each number of finished steps."""
    return np.searchsorted(_INNER, steps_done, side="right")


def cell_of(steps_done: int) -> int:
    """The cell of a number of finished steps: its own below 16, then eight to each doubling."""
    shift = max(0, steps_done.bit_length() - 4)
    return 8 * shift + (steps_done >> shift)


MOST_CELLS = cell_of(4096) + 1
"""Cells with a mean of their own; later steps share the last."""

_CELLS = np.array([cell_of(steps_done) for steps_done in range(4096 + 1)], dtype=np.intp)


def cells_of(steps_done: Floats) -> Ints:
    """The cell of each number of finished steps, from 0 to below ``MOST_CELLS``."""
    found: Ints = _CELLS[np.minimum(steps_done, 4096.0).astype(np.intp)]
    return found
