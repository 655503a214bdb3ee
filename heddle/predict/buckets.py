"""Steps that are told apart: each of the first few, then ever wider ranges."""

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
