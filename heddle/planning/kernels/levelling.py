"""Groups as equal in size as a deadline allows: what a plan takes from the many for the few is given back."""

from __future__ import annotations

import numpy as np

from heddle.planning.kernels.compiled import compiled
from heddle.planning.kernels.draining import gather, group_seconds
from heddle.planning.plan import Indices
from heddle.planning.profile import Floats


@compiled
def level(lengths: Floats, steps: Floats, caps: Indices, rows: Indices, owners: Indices, bound: float) -> int:
    """Moves members, the shortest first, from the worker with most of them per cap to those with fewest.

    Only where the target ends within ``bound`` all the same and does not get more than the source had.
    ``owners``, the worker of each position, changes in place. Returns how many members moved.
    """
    workers = len(rows)
    members = np.empty((workers, len(lengths)), np.int64)
    counts = np.empty(workers, np.int64)
    gather(owners, members, counts)
    blocked = np.zeros(workers, np.bool_)
    scratch = np.empty(len(lengths))
    moved = 0
    while True:
        source, most = -1, 0.0
        for worker in range(workers):
            load = counts[worker] / caps[rows[worker]]
            if not blocked[worker] and load > most:
                source, most = worker, load
        if source < 0:
            return moved
        position = members[source, counts[source] - 1]
        tried = np.zeros(workers, np.bool_)
        target = -1
        while True:
            candidate, least = -1, np.inf
            for worker in range(workers):
                load = (counts[worker] + 1) / caps[rows[worker]]
                if worker != source and not tried[worker] and load < least:
                    candidate, least = worker, load
            # After the move the target must not be the fuller one of both.
            if candidate < 0 or least > (counts[source] - 1) / caps[rows[source]]:
                break
            tried[candidate] = True
            size = joined(lengths, members[candidate], counts[candidate], position, scratch)
            row = rows[candidate]
            if group_seconds(scratch[:size], steps[row], caps[row]) <= bound:
                target = candidate
                break
        if target < 0:
            blocked[source] = True
            continue
        insert(members[target], counts[target], position)
        counts[target] += 1
        counts[source] -= 1
        owners[position] = target
        moved += 1


@compiled
def joined(lengths: Floats, members: Indices, count: int, position: int, out: Floats) -> int:
    """Lengths of members and one more, descending; returns how many."""
    filled = 0
    placed = False
    for index in range(count):
        if not placed and position < members[index]:
            out[filled] = lengths[position]
            filled += 1
            placed = True
        out[filled] = lengths[members[index]]
        filled += 1
    if not placed:
        out[filled] = lengths[position]
        filled += 1
    return filled


@compiled
def insert(members: Indices, count: int, position: int) -> None:
    """Into its place among ascending positions."""
    index = count
    while index > 0 and members[index - 1] > position:
        members[index] = members[index - 1]
        index -= 1
    members[index] = position
