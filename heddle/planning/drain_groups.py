"""Groups at the draining price: contiguous ones, spread ones, and the local search that improves any.

What ``heddle.placement.drain`` does for given workers and ``heddle.allocation.drain`` for a budget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from heddle.planning.cost import DrainingCost, row_of
from heddle.planning.kernels import draining, levelling
from heddle.planning.plan import Indices, Partition
from heddle.planning.profile import Floats
from heddle.planning.reach import runs

TOLERANCE = 1e-3
"""Relative, of the bisection for contiguous groups: what follows improves on far more than this."""
TRIES = 5_000_000
"""Members looked at between two looks at the clock: some 20 ms."""

MAX_EXACT = 8_192
"""Trajectories up to which runs are found with the exact time of those who wait; above, it takes seconds."""
MAX_CELLS = 30_000_000
"""Workers x trajectories of the largest problem that is polished: the search keeps a table of that many."""

OutOfTime = Callable[[], bool]


def judged(lengths: Floats, cost: DrainingCost, partition: Partition) -> Partition:
    """The same groups at the draining price."""
    pairs = zip(partition.degrees, partition.groups, strict=True)
    seconds = [cost.seconds(degree, lengths[group]) for degree, group in pairs]
    return Partition(partition.degrees, partition.groups, max(seconds, default=0.0))


def best_runs(
    lengths: Floats, cost: DrainingCost, states: Indices, out_of_time: OutOfTime
) -> Partition | None:
    """The best contiguous groups over all sequences of workers in ``states``, to within ``TOLERANCE``.

    ``None``: out of time before a first one was found. ``lengths`` descend, at least one.
    """
    reach = np.empty(len(states), np.int64)
    last = np.empty(len(states), np.int64)
    low = float(lengths[0] * cost.steps[:, 1].min())
    high = bound = low
    found = None
    exact = len(lengths) <= MAX_EXACT
    while not out_of_time():
        state = draining.fill(lengths, cost.steps, cost.caps, states, bound, exact, reach, last)
        if state >= 0:
            high = bound
            found = _trace(cost, states, reach, last, state)
        elif found is None:
            low, high = bound, 2 * bound
        else:
            low = bound
        if found is not None and high - low <= TOLERANCE * high:
            break
        bound = high if found is None else 0.5 * (low + high)
    return None if found is None else judged(lengths, cost, found)


def spread(lengths: Floats, cost: DrainingCost, degrees: Sequence[int]) -> Partition:
    """Longest first, each where its group would end soonest."""
    rows = _rows(cost, degrees)
    owners = draining.spread(lengths, cost.steps, cost.caps, rows)
    return judged(lengths, cost, _partition(degrees, owners))


def polished(
    lengths: Floats,
    cost: DrainingCost,
    partition: Partition,
    *,
    seed: int,
    patience: int,
    out_of_time: OutOfTime,
) -> Partition:
    """Groups for the same workers, never worse; ends after ``patience`` tries in a row without success."""
    rows = _rows(cost, partition.degrees)
    if len(rows) < 2 or len(rows) * len(lengths) > MAX_CELLS:
        return partition
    owners = _owners(partition, len(lengths))
    state = np.array([1.0 + seed % 2147483646])
    tries = max(min(TRIES * len(rows) // (100 * len(lengths) + 1), patience), 1)
    idle = 0
    while idle < patience and not out_of_time():
        before = idle
        idle = draining.polish(lengths, cost.steps, cost.caps, rows, owners, tries, state)
        idle += before if idle == tries else 0
    improved = judged(lengths, cost, _partition(partition.degrees, owners))
    return min(improved, partition, key=lambda candidate: candidate.makespan_s)


def levelled(lengths: Floats, cost: DrainingCost, partition: Partition, within_s: float) -> Partition:
    """Groups of as equal sizes, by what each worker runs at once, as ends within ``within_s`` allow.

    A plan for known lengths spares its longest trajectories by crowding all others; what it does not need for
    its end is given back to them. It ends within ``within_s`` where it did before.
    """
    owners = _owners(partition, len(lengths))
    levelling.level(lengths, cost.steps, cost.caps, _rows(cost, partition.degrees), owners, within_s)
    return judged(lengths, cost, _partition(partition.degrees, owners))


def _owners(partition: Partition, members: int) -> Indices:
    owners = np.empty(members, np.int64)
    for worker, group in enumerate(partition.groups):
        owners[group] = worker
    return owners


def _rows(cost: DrainingCost, degrees: Sequence[int]) -> Indices:
    return np.array([row_of(cost.degrees, degree) for degree in degrees], np.int64)


def _partition(degrees: Sequence[int], owners: Indices) -> Partition:
    order = np.argsort(owners, kind="stable")
    ends = np.cumsum(np.bincount(owners, minlength=len(degrees)))
    return Partition(tuple(degrees), tuple(np.split(order, ends[:-1])), 0.0)


def _trace(cost: DrainingCost, states: Indices, reach: Indices, last: Indices, state: int) -> Partition:
    degrees: list[int] = []
    ends: list[int] = []
    while last[state] >= 0:
        degrees.insert(0, cost.degrees[last[state]])
        ends.insert(0, int(reach[state]))
        state = int(states[state, last[state]])
    return Partition(tuple(degrees), runs(np.array(ends, np.int64)), 0.0)
