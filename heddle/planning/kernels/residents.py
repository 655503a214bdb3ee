"""From homes that are to homes as a plan wants them, with as few moves as its makespan asks for.

A plan of the exact solvers starts from nothing: groups of equal workers could be exchanged among them, and
most of its members sit where they do for no reason but that everybody must sit somewhere. So first each group
gets the worker that holds most of it already (``matched``), and then only those leave home whose worker would
end later than the plan does (``relieved``).
"""

from __future__ import annotations

import numpy as np

from heddle.planning.kernels.compiled import compiled
from heddle.planning.kernels.draining import ends, gather, group_seconds
from heddle.planning.kernels.levelling import insert, joined
from heddle.planning.plan import Indices
from heddle.planning.profile import Floats


@compiled
def ends_of(lengths: Floats, steps: Floats, caps: Indices, rows: Indices, owners: Indices) -> Floats:
    """Seconds until each worker has drained; ``owners`` is the worker of each position."""
    members = np.empty((len(rows), len(lengths)), np.int64)
    counts = np.empty(len(rows), np.int64)
    gather(owners, members, counts)
    return ends(lengths, steps, caps, rows, members, counts)


@compiled
def matched(lengths: Floats, rows: Indices, homes: Indices, owners: Indices) -> Indices:
    """``owners`` with groups of equal workers exchanged so that most tokens are at home.

    Greedily: of all pairs of a group and a worker of its row the one that shares most, and so on. A home of
    -1 is none.
    """
    workers = len(rows)
    shared = np.zeros((workers, workers))
    for position in range(len(lengths)):
        if homes[position] >= 0:
            # One token more: those of no length are at home as well.
            shared[owners[position], homes[position]] += lengths[position] + 1.0
    worker_of = np.full(workers, -1, np.int64)
    taken = np.zeros(workers, np.bool_)
    order = np.argsort(-shared.ravel(), kind="mergesort")
    for cell in order:
        group, worker = cell // workers, cell % workers
        if worker_of[group] < 0 and not taken[worker] and rows[group] == rows[worker]:
            worker_of[group] = worker
            taken[worker] = True
    result = np.empty(len(owners), np.int64)
    for position in range(len(owners)):
        result[position] = worker_of[owners[position]]
    return result


@compiled
def end_with(
    lengths: Floats, steps: Floats, cap: int, group: Indices, position: int, scratch: Floats
) -> float:
    """When a worker has drained whose ``group`` one more joins."""
    size = joined(lengths, group, len(group), position, scratch)
    return group_seconds(scratch[:size], steps, cap)


@compiled
def longest_that_fits(
    lengths: Floats, steps: Floats, cap: int, source: Indices, group: Indices, bound_s: float, scratch: Floats
) -> int:
    """Of the members of ``source`` the first, and so the longest, with whom ``group`` ends within the bound.

    All members where none does: who is shorter never ends later, so this is a bisection.
    """
    low, high = 0, len(source)
    while low < high:
        middle = (low + high) // 2
        if end_with(lengths, steps, cap, group, source[middle], scratch) <= bound_s:
            high = middle
        else:
            low = middle + 1
    return low


@compiled
def relieved(
    lengths: Floats,
    steps: Floats,
    caps: Indices,
    rows: Indices,
    homes: Indices,
    wanted: Indices,
    costs_s: Floats,
    bound_s: float,
    most: int,
) -> Indices:
    """Owners after as many moves, at most ``most``, as bring the workers within ``bound_s``.

    Always from the worker that ends last: first whom ``wanted`` has elsewhere, to there, then anybody to
    whichever worker ends first; longest first, each once, and only where the target ends within the bound
    with it and ``costs_s``, the price of its move. So no worker ends beyond the bound that did not before.
    """
    workers = len(rows)
    members = np.empty((workers, len(lengths)), np.int64)
    counts = np.empty(workers, np.int64)
    gather(homes, members, counts)
    seconds = ends(lengths, steps, caps, rows, members, counts)
    owners = homes.copy()
    stuck = np.zeros(workers, np.bool_)
    tried = np.zeros(len(lengths), np.bool_)
    scratch = np.empty(len(lengths))
    for _ in range(most):
        late = -1
        for worker in range(workers):
            if stuck[worker] or seconds[worker] <= bound_s:
                continue
            if late < 0 or seconds[worker] > seconds[late]:
                late = worker
        if late < 0:
            break
        moved, target, end = -1, -1, 0.0
        for index in range(counts[late]):
            position = members[late, index]
            target = wanted[position]
            # Targets only ever fill up, so what did not fit once need not be tried again.
            if tried[position] or target == late or seconds[target] > bound_s or owners[position] == target:
                continue
            tried[position] = True
            row, group = rows[target], members[target, : counts[target]]
            end = end_with(lengths, steps[row], caps[row], group, position, scratch) + costs_s[position]
            if end <= bound_s:
                moved = index
                break
        if moved < 0:
            target = int(np.argmin(seconds))
            row, group = rows[target], members[target, : counts[target]]
            source = members[late, : counts[late]]
            first = longest_that_fits(lengths, steps[row], caps[row], source, group, bound_s, scratch)
            for index in range(first, counts[late]):
                position = members[late, index]
                if owners[position] != homes[position]:
                    continue
                end = end_with(lengths, steps[row], caps[row], group, position, scratch) + costs_s[position]
                if end <= bound_s:
                    moved = index
                    break
        if moved < 0:
            stuck[late] = True
            continue
        position = members[late, moved]
        for index in range(moved, counts[late] - 1):
            members[late, index] = members[late, index + 1]
        counts[late] -= 1
        insert(members[target], counts[target], position)
        counts[target] += 1
        owners[position] = target
        seconds[target] = end
        left = lengths[members[late, : counts[late]]]
        seconds[late] = group_seconds(left, steps[rows[late]], caps[rows[late]])
    return owners
