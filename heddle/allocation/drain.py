"""Heddle's own planner: workers and groups for batches that drain, by candidates and anytime local search.

The size prices hold a group's batch to be full until its longest member ends. Run to their end, their optimal
plans lose to plans with fewer and larger workers. There is no exact solution for the draining price that is
fast enough (the exchange argument of Lemma 5.1 fails), but a good start and a good judge:

1. candidates: what the caller has (the static optimum, homogeneous pools), the best runs of the sorted
   lengths over all degree sequences, and for every homogeneous pool its best runs and its even spread;
2. the best few are given the budget's idle GPUs as further workers and polished by moving members;
3. until time is up, annealing over the pools: the current plan's workers are redistributed, split or merged,
   placed anew, polished, and kept if better, or now and then if little worse.

Every plan is judged by running its groups to their end, event by event. The best so far is never lost, so the
result is never worse than any candidate.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence

import numpy as np

from heddle.allocation.annealing import neighbour
from heddle.errors import ConfigError
from heddle.planning.cost import DrainingCost, row_of
from heddle.planning.drain_groups import OutOfTime, best_runs, judged, polished, spread
from heddle.planning.plan import Partition
from heddle.planning.profile import Floats
from heddle.planning.reach import budget_states, sequence_states

STARTS = 3
"""Candidates that are polished; the others were further from the best than polishing closes."""
PATIENCE = 4_000
"""Fruitless tries in a row after which polishing one pool ends."""
TOLERATED_LOSS = 0.01
"""Temperature, relative: a pool worse by this much is kept with probability 1/e."""


def allocate(
    lengths: Floats,
    gpus: int,
    cost: DrainingCost,
    *,
    candidates: Sequence[Partition] = (),
    seed: int = 0,
    goal_s: float = 0.0,
    out_of_time: OutOfTime,
) -> Partition:
    """The best plan of :func:`search` when time is up, or at once where one reaches ``goal_s``."""
    plans = search(lengths, gpus, cost, candidates=candidates, seed=seed, out_of_time=out_of_time)
    best = next(plans)
    while best.makespan_s > goal_s:
        better = next(plans, None)
        if better is None:
            break
        best = better
    return best


def search(
    lengths: Floats,
    gpus: int,
    cost: DrainingCost,
    *,
    candidates: Sequence[Partition] = (),
    seed: int = 0,
    out_of_time: OutOfTime,
) -> Iterator[Partition]:
    """Ever better plans, at least one, until ``out_of_time()``; ``lengths`` descend.

    ``candidates`` are plans within the budget at any price. Raises ``ConfigError`` where no degree fits.
    """
    allowed = [degree for degree in cost.degrees if degree <= gpus]
    if not allowed:
        raise ConfigError(f"no worker fits the budget of {gpus} GPUs; degrees: {cost.degrees}")
    if len(lengths) == 0:
        yield Partition((), (), 0.0)
        return
    best: Partition | None = None
    starts: list[Partition] = []
    for start in _candidates(lengths, gpus, cost, allowed, candidates, out_of_time):
        starts.append(start)
        if best is None or start.makespan_s < best.makespan_s:
            best = start
            yield best
    for plan in _improvements(lengths, gpus, cost, allowed, starts, seed, out_of_time):
        if best is None or plan.makespan_s < best.makespan_s:
            best = plan
            yield best


def _candidates(
    lengths: Floats,
    gpus: int,
    cost: DrainingCost,
    allowed: Sequence[int],
    given: Sequence[Partition],
    out_of_time: OutOfTime,
) -> Iterator[Partition]:
    """All of them even when time is up, except the runs: those take long where trajectories are many."""
    for partition in given:
        yield judged(lengths, cost, partition)
    for degree in allowed:
        yield spread(lengths, cost, (degree,) * (gpus // degree))
    contiguous = best_runs(lengths, cost, budget_states(gpus, cost.degrees), out_of_time)
    if contiguous is not None:
        yield contiguous
    for degree in allowed:
        pool = sequence_states([row_of(cost.degrees, degree)] * (gpus // degree), len(cost.degrees))
        contiguous = best_runs(lengths, cost, pool, out_of_time)
        if contiguous is not None:
            yield contiguous


def _improvements(
    lengths: Floats,
    gpus: int,
    cost: DrainingCost,
    allowed: Sequence[int],
    starts: Sequence[Partition],
    seed: int,
    out_of_time: OutOfTime,
) -> Iterator[Partition]:
    if gpus < 2 * min(allowed):
        return  # a single worker is all there can be, and each is among the starts
    rng = random.Random(seed)
    ascending = sorted(allowed)

    def polish(partition: Partition) -> Partition:
        whole = _with_idle_gpus(partition, gpus, allowed)
        drawn = rng.randrange(1 << 30)
        return polished(lengths, cost, whole, seed=drawn, patience=PATIENCE, out_of_time=out_of_time)

    current: Partition | None = None
    for start in sorted(starts, key=_makespan)[:STARTS]:
        polished_start = polish(start)
        yield polished_start
        current = polished_start if current is None else min(current, polished_start, key=_makespan)
    while current is not None and not out_of_time():
        pool = neighbour(tuple(sorted(current.degrees, reverse=True)), gpus, ascending, rng)
        states = sequence_states([row_of(cost.degrees, degree) for degree in pool], len(cost.degrees))
        placed = [spread(lengths, cost, pool)]
        contiguous = best_runs(lengths, cost, states, out_of_time)
        if contiguous is not None:
            placed.append(contiguous)
        proposal = polish(min(placed, key=_makespan))
        yield proposal
        loss = proposal.makespan_s / current.makespan_s - 1 if current.makespan_s > 0 else 0.0
        if loss <= 0 or rng.random() < math.exp(-loss / TOLERATED_LOSS):
            current = proposal


def _makespan(partition: Partition) -> float:
    return partition.makespan_s


def _with_idle_gpus(partition: Partition, gpus: int, allowed: Sequence[int]) -> Partition:
    """The same plan with workers, still empty, on the GPUs that it leaves unused."""
    degrees = list(partition.degrees)
    while fitting := [degree for degree in allowed if degree <= gpus - sum(degrees)]:
        degrees.append(max(fitting))
    empty = (np.empty(0, np.int64),) * (len(degrees) - len(partition.degrees))
    return Partition(tuple(degrees), partition.groups + empty, partition.makespan_s)
