"""Means over seeds and how far to trust them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_STUDENT_95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""Two-sided 95 % quantiles of Student's distribution for 1 to 30 degrees of freedom."""
_NORMAL_95 = 1.960


@dataclass(frozen=True, slots=True)
class Spread:
    """Values of one figure over seeds."""

    mean: float
    half_width: float
    """Of the 95 % confidence interval of the mean, by Student's distribution; 0.0 for one value."""
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        half_width = 0.0
        if len(values) > 1:
            freedom = len(values) - 1
            quantile = _STUDENT_95[freedom - 1] if freedom <= len(_STUDENT_95) else _NORMAL_95
            half_width = quantile * statistics.stdev(values) / math.sqrt(len(values))
        return cls(statistics.fmean(values), half_width, min(values), max(values))
