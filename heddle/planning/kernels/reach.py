"""The exact optimum of a size price: bisection over the makespan, feasibility by greedy reach.

Groups are runs of the descending order of lengths, one after another. A *state* says which workers have been
used so far (GPUs spent, workers of each degree spent, ...); its predecessors are the states from which one
more worker leads to it. For a makespan ``bound``, ``reach[state]`` is the longest prefix that these workers
can finish within it. Extending a longer prefix ends no earlier than extending a shorter one (the next length
is no larger, prices do not fall with size), so keeping only the longest prefix of each state loses nothing.

The bisection ends at a price, not at a tolerance: a feasible bound shrinks to the makespan of the plan that
was found, an infeasible one grows to the smallest price that stopped an extension, below which every reach
stays as it was. O(states x degrees x log n) a bound.
"""

from __future__ import annotations

import numpy as np

from heddle.planning.kernels.compiled import compiled
from heddle.planning.plan import Indices
from heddle.planning.profile import Floats


@compiled
def extension(lengths: Floats, row: Floats, start: int, bound: float) -> int:
    """The largest size with ``lengths[start] * row[size] <= bound`` within the list; 0 if none."""
    low, high = 0, len(lengths) - start
    first = lengths[start]
    while low < high:
        middle = (low + high + 1) // 2
        if first * row[middle] <= bound:
            low = middle
        else:
            high = middle - 1
    return low


@compiled
def fill(
    lengths: Floats,
    steps: Floats,
    predecessors: Indices,
    finals: Indices,
    bound: float,
    reach: Indices,
    last: Indices,
) -> tuple[int, float]:
    """Fills ``reach`` and ``last`` (the degree's row that made it; -1: none).

    Returns the first final state that reaches the end (-1: none) and the smallest price above ``bound`` that
    stopped an extension.
    """
    size = len(lengths)
    blocked = np.inf
    reach[0] = 0
    last[0] = -1
    if finals[0] and size == 0:
        return 0, blocked
    for state in range(1, len(predecessors)):
        reach[state] = -1
        last[state] = -1
        for row in range(len(steps)):
            before = predecessors[state, row]
            if before < 0 or reach[before] < 0:
                continue
            start = reach[before]
            end = start
            if start < size:
                end += extension(lengths, steps[row], start, bound)
                if end < size:
                    blocked = min(blocked, lengths[start] * steps[row, end - start + 1])
            if end > reach[state]:
                reach[state] = end
                last[state] = row
        if finals[state] and reach[state] == size:
            return state, blocked
    return -1, blocked


@compiled
def trace(
    lengths: Floats, steps: Floats, predecessors: Indices, reach: Indices, last: Indices, state: int
) -> tuple[float, Indices, Indices]:
    """Makespan, rows and ends of the groups that led to ``state``, in order."""
    count = 0
    walk = state
    while last[walk] >= 0:
        walk = predecessors[walk, last[walk]]
        count += 1
    rows = np.empty(count, np.int64)
    ends = np.empty(count, np.int64)
    makespan = 0.0
    for index in range(count - 1, -1, -1):
        rows[index] = last[state]
        ends[index] = reach[state]
        state = predecessors[state, last[state]]
        start = reach[state]
        if start < ends[index]:
            makespan = max(makespan, lengths[start] * steps[rows[index], ends[index] - start])
    return makespan, rows, ends


@compiled
def optimum(
    lengths: Floats, steps: Floats, predecessors: Indices, finals: Indices
) -> tuple[float, Indices, Indices]:
    """The least makespan of any sequence of workers from state 0 to a final state.

    ``lengths`` descend, at least one; ``steps``: see ``SizeCost``; ``predecessors[state, row]`` is the state
    before a worker of that row was added, or -1, and always smaller than ``state``; ``finals[state]`` is 1
    where one may stop. Returns makespan, rows and ends of the groups; infinite: no final state can be
    reached.
    """
    reach = np.empty(len(predecessors), np.int64)
    last = np.empty(len(predecessors), np.int64)
    high = np.inf
    rows = np.empty(0, np.int64)
    ends = np.empty(0, np.int64)
    low = 0.0
    bound = lengths[0] * steps[:, len(lengths)].max()
    while True:
        state, blocked = fill(lengths, steps, predecessors, finals, bound, reach, last)
        if state >= 0:
            high, rows, ends = trace(lengths, steps, predecessors, reach, last, state)
        else:
            low = blocked
        if low >= high or (state < 0 and blocked == np.inf):
            return high, rows, ends
        bound = low + 0.5 * (high - low)
        if not low <= bound < high:
            bound = low
