"""The paper's recurrence over sorted lengths (its section 5.2, equation 3), literally, in O(n m log n).

``dp[i][j]``, the least makespan of the first ``i`` on the first ``j`` workers with no worker empty, is the
minimum over ``k < i`` of ``max(dp[k][j - 1], L(k + 1) * T_j * F_j(i - k))``. With workers of different
degrees ``dp`` is not monotone in ``i`` (one trajectory more may spare the slow worker the long one), so a
bisection over ``k`` would be wrong. But the second term never grows with ``k``: ``k`` is of no use once some
later ``k' < i`` has ``dp[k'][j - 1] <= dp[k][j - 1]``. The ``k`` that survive form a stack with both terms
monotone along it, and the best one is found where they cross. Values equal the O(n^2 m) recurrence exactly;
only ties may be split otherwise.
"""

from __future__ import annotations

import numpy as np

from heddle.planning.kernels.compiled import compiled
from heddle.planning.plan import Indices
from heddle.planning.profile import Floats


@compiled
def next_row(
    firsts: Floats, positions: Indices, step_row: Floats, before: Floats, row: Floats, split: Indices
) -> None:
    """Fills ``row[i]`` and ``split[i]`` from the row of one worker less; ``inf`` and -1: impossible."""
    units = len(firsts)
    stack = np.empty(units, np.int64)
    depth = 0
    row[0] = np.inf
    split[0] = -1
    for i in range(1, units + 1):
        row[i] = np.inf
        split[i] = -1
        if before[i - 1] < np.inf:
            while depth > 0 and before[stack[depth - 1]] >= before[i - 1]:
                depth -= 1
            stack[depth] = i - 1
            depth += 1
        if depth == 0:
            continue
        low, high = 0, depth
        while low < high:
            middle = (low + high) // 2
            k = stack[middle]
            if before[k] >= firsts[k] * step_row[positions[i] - positions[k]]:
                high = middle
            else:
                low = middle + 1
        if low < depth:
            split[i] = stack[low]
            row[i] = before[stack[low]]
        if low > 0:
            k = stack[low - 1]
            price = firsts[k] * step_row[positions[i] - positions[k]]
            if price < row[i]:
                split[i] = k
                row[i] = price


@compiled
def solve(firsts: Floats, positions: Indices, steps: Floats, rows: Indices) -> tuple[float, Indices]:
    """Makespan and ends (in positions) of the groups of all workers, none empty.

    ``firsts`` are the lengths at which units start, descending; unit ``u`` holds positions ``positions[u]``
    to ``positions[u + 1]``; ``rows`` are the workers' rows of ``steps``, no more than there are units.
    """
    units = len(firsts)
    splits = np.empty((len(rows), units + 1), np.int64)
    before = np.full(units + 1, np.inf)
    before[0] = 0.0
    row = np.empty(units + 1)
    for worker in range(len(rows)):
        next_row(firsts, positions, steps[rows[worker]], before, row, splits[worker])
        before, row = row, before
    ends = np.empty(len(rows), np.int64)
    end = units
    for worker in range(len(rows) - 1, -1, -1):
        ends[worker] = positions[end]
        end = splits[worker, end]
    return before[units], ends
