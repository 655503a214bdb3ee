"""Contiguous groups from the greedy reach: the states, and the optimum of a size price over them.

A state says which workers are used so far; ``predecessors[state, row]`` is the state before one more worker
of the degree in that row of the price table, -1 where there is none, and smaller than ``state``. State 0: no
workers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from heddle.errors import ConfigError
from heddle.planning.cost import SizeCost
from heddle.planning.kernels import reach
from heddle.planning.plan import Indices, Partition
from heddle.planning.profile import Floats


def optimum(lengths: Floats, cost: SizeCost, predecessors: Indices, finals: Indices) -> Partition:
    """The best contiguous partition over all sequences of workers that end in a final state.

    ``lengths`` descend. Raises ``ConfigError`` where no final state can be reached.
    """
    if len(lengths) == 0:
        return Partition((), (), 0.0)
    makespan, rows, ends = reach.optimum(lengths, cost.steps, predecessors, finals)
    if not np.isfinite(makespan):
        raise ConfigError("no set of workers satisfies the limits on their number within the budget")
    return Partition(tuple(cost.degrees[row] for row in rows), runs(ends), float(makespan))


def runs(ends: Indices) -> tuple[Indices, ...]:
    """The groups of a contiguous partition from where each ends."""
    everything = np.arange(ends[-1] if len(ends) else 0, dtype=np.int64)
    return tuple(np.split(everything, ends[:-1]))


def budget_states(gpus: int, degrees: Sequence[int]) -> Indices:
    """State = GPUs spent: all sequences of workers within the budget."""
    before = np.arange(gpus + 1, dtype=np.int64)[:, None] - np.array(degrees, np.int64)
    return np.where(before < 0, -1, before)


def counted_states(gpus: int, degrees: Sequence[int], most: int) -> Indices:
    """State = workers used x (GPUs + 1) + GPUs spent, of up to ``most`` workers."""
    before = budget_states(gpus, degrees)
    layers = np.where(before < 0, -1, before + (np.arange(most + 1)[:, None, None] - 1) * (gpus + 1))
    layers[0] = -1
    return layers.reshape(-1, len(degrees))


def pool_states(rows: Sequence[int], width: int) -> Indices:
    """State = how many workers of each row are used, as a number of mixed radix: a pool in any order."""
    used = np.zeros((1, width), np.int64)
    stride = {}
    for row, count in Counter(rows).items():
        stride[row] = len(used)
        used = np.concatenate([used + number * (np.arange(width) == row) for number in range(count + 1)])
    predecessors = np.full((len(used), width), -1, np.int64)
    for row, step in stride.items():
        has = np.flatnonzero(used[:, row])
        predecessors[has, row] = has - step
    return predecessors


def sequence_states(rows: Sequence[int], width: int) -> Indices:
    """State = workers used, in the given order."""
    predecessors = np.full((len(rows) + 1, width), -1, np.int64)
    predecessors[np.arange(1, len(rows) + 1), rows] = np.arange(len(rows))
    return predecessors
