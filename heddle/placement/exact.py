"""The best placement on given workers for a price of size and longest member.

By Lemma 5.1 of the paper some optimal partition consists of runs of the descending order, one a worker; which
worker takes which run is free, and matters where degrees differ. Hence the states of the greedy reach count
the workers of each degree that have been used: the optimum is over *all* assignments of trajectories to
workers, empty groups included. O(states x degrees x log n) for each of a few dozen bounds, with
``product of (workers of a degree + 1)`` states.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from heddle.errors import ConfigError
from heddle.planning.cost import SizeCost, row_of
from heddle.planning.plan import Indices, Partition
from heddle.planning.profile import Floats
from heddle.planning.reach import optimum, pool_states


def place(lengths: Floats, degrees: Sequence[int], cost: SizeCost) -> Partition:
    """Groups for workers of ``degrees``, in the order of ``degrees``; ``lengths`` descend.

    Raises ``ConfigError`` for no workers or a degree without price.
    """
    if not degrees:
        raise ConfigError("there must be at least one worker to place on")
    rows = [row_of(cost.degrees, degree) for degree in degrees]
    states = pool_states(rows, len(cost.degrees))
    found = optimum(lengths, cost, states, np.ones(len(states), np.int64))
    waiting: dict[int, list[Indices]] = {degree: [] for degree in degrees}
    for degree, group in zip(found.degrees, found.groups, strict=True):
        waiting[degree].append(group)
    empty = np.empty(0, np.int64)
    groups = tuple(waiting[degree].pop(0) if waiting[degree] else empty for degree in degrees)
    return Partition(tuple(degrees), groups, found.makespan_s)
