"""The time that a group takes when its batch drains: exact, event by event.

A worker runs at most ``cap`` members at once, longest first; who ends makes room for the next in line. All
running members get one token each ``steps[b]`` seconds, ``b`` being how many run.

Count time in tokens: the clock of a running member advances by one a step, for all alike. In that clock the members are
list-scheduled on ``cap`` identical machines, and machine ``j`` (latest end first) ends at ``e[1] >= e[2] >= ...``. While anybody
waits, all ``cap`` machines are busy; afterwards exactly ``j`` members run between ``e[j+1]`` and ``e[j]``. Hence

    seconds = sum over j of e[j] * (steps[j] - steps[j - 1]),    steps[0] = 0

where ``e`` is the sorted lengths themselves if no one has to wait. O(k log k) for ``k`` members.
"""

from __future__ import annotations

import numpy as np

from heddle.planning.kernels.compiled import compiled
from heddle.planning.profile import Floats


@compiled
def group_seconds(lengths: Floats, steps: Floats, cap: int) -> float:
    """Seconds of a group with descending ``lengths``; ``steps`` is defined up to ``min(k, cap)``."""
    size = len(lengths)
    if size <= cap:
        seconds = 0.0
        for j in range(size):
            seconds += lengths[j] * (steps[j + 1] - steps[j])
        return seconds
    ends = machine_ends(lengths, cap)
    seconds = 0.0
    for j in range(cap):
        seconds += ends[cap - 1 - j] * (steps[j + 1] - steps[j])
    return seconds


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
