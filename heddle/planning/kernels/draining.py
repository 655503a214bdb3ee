"""The time that a group takes when its batch drains, exactly; and groups made with it.

A worker runs at most ``cap`` members at once, longest first; who ends makes room for the next in line. All
running members get one token each ``steps[b]`` seconds, ``b`` being how many run.

Count time in tokens: the clock of a running member advances by one a step, for all alike. In that clock the
members are list-scheduled on ``cap`` identical machines, and machine ``j`` (latest end first) ends at ``e[1]
>= e[2] >= ...``. While anybody waits, all ``cap`` machines are busy; afterwards exactly ``j`` members run
between ``e[j+1]`` and ``e[j]``. Hence

    seconds = sum over j of e[j] * (steps[j] - steps[j - 1]),    steps[0] = 0

where ``e`` is the descending lengths themselves if nobody has to wait. O(k log k) for ``k`` members.
The time never falls where a member is added or becomes longer.
"""

from __future__ import annotations

import numpy as np

from heddle.planning.kernels.compiled import compiled
from heddle.planning.plan import Indices
from heddle.planning.profile import Floats

LONGEST_RUN = 16
"""Members that one try of the local search moves together at most."""
KINDS = 4
SWAP, MOVE_RUN, DIVIDE = 1, 2, 3
"""What a try does; 0: move a single member."""


@compiled
def machine_ends(lengths: Floats, cap: int) -> Floats:
    """When each of ``cap`` machines ends, ascending, if members start in order as machines fall free."""
    heap = np.zeros(cap)
    for length in lengths:
        # The first to fall free is at the root; its new end sinks to its place.
        end = heap[0] + length
        node = 0
        while True:
            child = 2 * node + 1
            if child >= cap:
                break
            if child + 1 < cap and heap[child + 1] < heap[child]:
                child += 1
            if heap[child] >= end:
                break
            heap[node] = heap[child]
            node = child
        heap[node] = end
    heap.sort()
    return heap


@compiled
def group_seconds(lengths: Floats, steps: Floats, cap: int) -> float:
    """Seconds of a group with descending ``lengths``; ``steps`` is defined up to ``min(k, cap)``."""
    size = len(lengths)
    seconds = 0.0
    if size <= cap:
        for j in range(size):
            seconds += lengths[j] * (steps[j + 1] - steps[j])
        return seconds
    ends = machine_ends(lengths, cap)
    for j in range(cap):
        seconds += ends[cap - 1 - j] * (steps[j + 1] - steps[j])
    return seconds


@compiled
def marginal(steps: Floats, cap: int, size: int) -> float:
    """Seconds per token that one member more, shorter than all, adds to a group of ``size``.

    Exact below the cap; beyond it the share of a full batch, which is what waiting costs on average.
    """
    return float(steps[size + 1] - steps[size] if size < cap else steps[cap] / cap)


@compiled
def extension(lengths: Floats, steps: Floats, cap: int, start: int, bound: float, exact: bool) -> int:
    """The most members, from ``start`` on, that a worker finishes within ``bound``.

    Where not ``exact``, members who wait are taken to cost their share of a full batch.
    """
    left = len(lengths) - start
    size = 0
    seconds = 0.0
    while size < left:
        seconds += lengths[start + size] * marginal(steps, cap, size)
        if seconds > bound:
            break
        size += 1
    if size <= cap or not exact:
        return size
    # Beyond the cap that sum is a guess only: search for the exact size from there, by doubling strides.
    fits, beyond, stride = cap, left + 1, 1
    probe = size
    while fits < probe < beyond:
        if group_seconds(lengths[start : start + probe], steps, cap) <= bound:
            fits = probe
            probe += stride if probe >= size else beyond
        else:
            beyond = probe
            probe -= stride if probe <= size else beyond
        stride *= 2
    while beyond - fits > 1:
        probe = (fits + beyond) // 2
        if group_seconds(lengths[start : start + probe], steps, cap) <= bound:
            fits = probe
        else:
            beyond = probe
    return fits


@compiled
def fill(
    lengths: Floats,
    steps: Floats,
    caps: Indices,
    predecessors: Indices,
    bound: float,
    exact: bool,
    reach: Indices,
    last: Indices,
) -> int:
    """As ``kernels.reach.fill`` at the draining price, every state final; -1: the end is not reached.

    The argument is the same: of two starts the later one meets shorter members at every rank, so its group
    ends no earlier in the list. But only contiguous groups are considered, and others may be better.
    """
    reach[0] = 0
    last[0] = -1
    for state in range(1, len(predecessors)):
        reach[state] = -1
        last[state] = -1
        for row in range(len(steps)):
            before = predecessors[state, row]
            if before < 0 or reach[before] < 0:
                continue
            start = reach[before]
            end = start + extension(lengths, steps[row], caps[row], start, bound, exact)
            if end > reach[state]:
                reach[state] = end
                last[state] = row
        if reach[state] == len(lengths):
            return state
    return -1


@compiled
def spread(lengths: Floats, steps: Floats, caps: Indices, rows: Indices) -> Indices:
    """The worker of each trajectory when each, longest first, goes where the group would end soonest."""
    owners = np.empty(len(lengths), np.int64)
    sizes = np.zeros(len(rows), np.int64)
    seconds = np.zeros(len(rows))
    for position in range(len(lengths)):
        best, best_seconds = 0, np.inf
        for worker in range(len(rows)):
            row = rows[worker]
            ends = seconds[worker] + lengths[position] * marginal(steps[row], caps[row], sizes[worker])
            if ends < best_seconds:
                best, best_seconds = worker, ends
        seconds[best] = best_seconds
        sizes[best] += 1
        owners[position] = best
    return owners


@compiled
def draw(state: Floats, below: int) -> int:
    """A random number from 0 to ``below - 1``; ``state[0]``, 1 to 2**31 - 2, moves on (Park and Miller)."""
    state[0] = (state[0] * 48271.0) % 2147483647.0
    return int((state[0] - 1.0) / 2147483646.0 * below)


@compiled
def merge(
    base: Indices, skip: int, skipped: int, other: Indices, start: int, count: int, out: Indices
) -> int:
    """Writes ``base`` without ``skipped`` members from ``skip`` on, and ``count`` of ``other``, ascending.

    Returns how many were written to ``out``.
    """
    filled = 0
    taken = start
    for index in range(len(base)):
        if skip <= index < skip + skipped:
            continue
        while taken < start + count and other[taken] < base[index]:
            out[filled] = other[taken]
            filled += 1
            taken += 1
        out[filled] = base[index]
        filled += 1
    while taken < start + count:
        out[filled] = other[taken]
        filled += 1
        taken += 1
    return filled


@compiled
def divide(
    lengths: Floats,
    steps: Floats,
    caps: Indices,
    pair: Indices,
    both: Indices,
    head: int,
    favoured: int,
    out: Indices,
    sizes: Indices,
) -> None:
    """Divides ``both`` between two workers: the first ``head`` to the favoured one, then evenly."""
    seconds = np.zeros(2)
    longer = np.zeros(2)
    sizes[:] = 0
    for index in range(len(both)):
        for side in range(2):
            added = marginal(steps[pair[side]], caps[pair[side]], sizes[side])
            longer[side] = seconds[side] + lengths[both[index]] * added
        side = favoured if index < head else int(longer[1] < longer[0])
        seconds[side] = longer[side]
        out[side, sizes[side]] = both[index]
        sizes[side] += 1


@compiled
def propose(
    lengths: Floats,
    steps: Floats,
    caps: Indices,
    pair: Indices,
    source: Indices,
    target: Indices,
    state: Floats,
    out: Indices,
    sizes: Indices,
) -> bool:
    """Random new groups of two workers, of rows ``pair``, into ``out``; false where the draw makes no sense.

    Moves one of the source's members or a short run of them, swaps one for a shorter one of the target's, or
    divides both groups anew.
    """
    kind = draw(state, KINDS)
    if kind == DIVIDE:
        both = np.empty(len(source) + len(target), np.int64)
        merge(source, 0, 0, target, 0, len(target), both)
        head = draw(state, min(len(both), LONGEST_RUN) + 1)
        divide(lengths, steps, caps, pair, both, head, draw(state, 2), out, sizes)
        return True
    run = 1 + draw(state, min(LONGEST_RUN, len(source))) if kind == MOVE_RUN else 1
    given = draw(state, len(source) - run + 1)
    back, returned = 0, 0
    if kind == SWAP:
        if len(target) == 0:
            return False
        back, returned = draw(state, len(target)), 1
        if target[back] < source[given]:
            return False
    sizes[0] = merge(source, given, run, target, back, returned, out[0])
    sizes[1] = merge(target, back, returned, source, given, run, out[1])
    return True


@compiled
def gather(owners: Indices, members: Indices, counts: Indices) -> None:
    """Fills ``members[worker, : counts[worker]]`` with the positions that a worker owns, ascending."""
    counts[:] = 0
    for position in range(len(owners)):
        worker = owners[position]
        members[worker, counts[worker]] = position
        counts[worker] += 1


@compiled
def ends(
    lengths: Floats, steps: Floats, caps: Indices, rows: Indices, members: Indices, counts: Indices
) -> Floats:
    """Seconds until each worker has drained; its ``members`` are as gathered."""
    seconds = np.empty(len(rows))
    for worker in range(len(rows)):
        group = lengths[members[worker, : counts[worker]]]
        seconds[worker] = group_seconds(group, steps[rows[worker]], caps[rows[worker]])
    return seconds


@compiled
def polish(
    lengths: Floats,
    steps: Floats,
    caps: Indices,
    rows: Indices,
    owners: Indices,
    tries: int,
    state: Floats,
) -> int:
    """Improves ``owners``, the worker of each position, in place; returns the tries since it last did.

    Every try takes the worker that ends last and another one, and keeps new groups of theirs if both end
    sooner than the former did. So the makespan never rises. There are two workers or more; ``state`` is the
    generator's.
    """
    workers = len(rows)
    members = np.empty((workers, len(lengths)), np.int64)
    counts = np.empty(workers, np.int64)
    gather(owners, members, counts)
    seconds = ends(lengths, steps, caps, rows, members, counts)
    out = np.empty((2, len(lengths)), np.int64)
    sizes = np.zeros(2, np.int64)
    pair = np.zeros(2, np.int64)
    idle = 0
    for _ in range(tries):
        idle += 1
        late = int(np.argmax(seconds))
        other = draw(state, workers - 1)
        other += 1 if other >= late else 0
        pair[0], pair[1] = rows[late], rows[other]
        source, target = members[late, : counts[late]], members[other, : counts[other]]
        if len(source) == 0 or not propose(lengths, steps, caps, pair, source, target, state, out, sizes):
            continue
        second = group_seconds(lengths[out[1, : sizes[1]]], steps[pair[1]], caps[pair[1]])
        if second >= seconds[late]:
            continue
        first = group_seconds(lengths[out[0, : sizes[0]]], steps[pair[0]], caps[pair[0]])
        if first >= seconds[late]:
            continue
        seconds[late], seconds[other] = first, second
        for side, worker in ((0, late), (1, other)):
            counts[worker] = sizes[side]
            members[worker, : sizes[side]] = out[side, : sizes[side]]
            owners[out[side, : sizes[side]]] = worker
        idle = 0
    return idle
