"""Lengths to place by, from quantiles and a trust in them.

Placement by length pays only as far as lengths are known: one long trajectory misfiled among the many short
ones sets the makespan. So as trust falls, two things happen. Each trajectory is taken at a higher quantile,
from its median at trust 1 to its highest quantile at trust 0 (who may become long is placed as if long); and
all are shrunk towards their common mean, until at trust 0 they are alike and placement spreads them evenly.
The order of trajectories whose quantiles all agree is kept, so that "longest first" stays what it was.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from heddle.errors import ConfigError
from heddle.planning.plan import MAX_TOKENS
from heddle.planning.profile import Floats


def hedged_lengths(
    levels: Sequence[float], quantiles: Sequence[Sequence[float]] | Floats, trust: float
) -> Floats:
    """One length a trajectory, shape ``(n,)``.

    ``quantiles`` has shape ``(n, len(levels))``: tokens at each of the ascending ``levels`` in (0, 1); point
    estimates are one level. ``trust`` in [0, 1]: 1 takes medians as they are, 0 takes all as equal. Between
    levels values are interpolated, outside them the nearest holds. Raises ``ConfigError``.
    """
    if not 0 <= trust <= 1:
        raise ConfigError(f"trust must be between 0 and 1, got {trust}")
    grid = np.asarray(levels, dtype=np.float64)
    if grid.ndim != 1 or len(grid) == 0 or not np.all((grid > 0) & (grid < 1)) or np.any(np.diff(grid) <= 0):
        raise ConfigError(f"quantile levels must ascend between 0 and 1, got {list(levels)}")
    if any(len(row) != len(grid) for row in quantiles):
        raise ConfigError(f"every trajectory needs {len(grid)} quantiles")
    values = np.asarray(quantiles, dtype=np.float64).reshape(-1, len(grid))
    wrong = ~((values >= 0) & (values <= MAX_TOKENS)).all(axis=1) | (np.diff(values, axis=1) < 0).any(axis=1)
    if wrong.any():
        raise ConfigError(
            f"the quantiles of trajectory {int(np.argmax(wrong))} must ascend and not be negative"
        )
    taken = _at(grid, values, 1 - trust / 2) if len(grid) > 1 else values[:, 0]
    return trust * taken + (1 - trust) * (taken.mean() if len(taken) else 0.0)


def _at(grid: Floats, values: Floats, level: float) -> Floats:
    """Quantiles of all at one level, linear between those known."""
    level = min(max(level, float(grid[0])), float(grid[-1]))
    above = max(int(np.searchsorted(grid, level)), 1)
    share = (level - grid[above - 1]) / (grid[above] - grid[above - 1])
    return np.asarray(values[:, above - 1] * (1 - share) + values[:, above] * share)
