"""Heddle's own planner: workers and groups for batches that drain, by candidates and anytime local search.

The size prices hold a group's batch to be full until its longest member ends. Run to their end, their optimal
plans lose to plans with fewer and larger workers. There is no exact solution for the draining price that is
fast enough (the exchange argument of Lemma 5.1 fails), but a good start and a good judge:

1. candidates: what the caller has (the static optimum, homogeneous pools), the best runs of the sorted
   lengths over all degree sequences, and for every homogeneous pool its best runs and its even spread;
2. homogeneous pools that come close get the search that placement on given workers would give them: where
   the best pool is such a one, having looked at others must cost nothing;
3. the best few are given the budget's idle GPUs as further workers and polished by moving members;
4. until time is up, annealing over the pools: the current plan's workers are redistributed, split or merged,
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
CLOSE = 0.01
"""A homogeneous pool comes close if it is at most this much slower, relative, than the best candidate."""
POOL_PATIENCE = 20_000
"""The patience of ``heddle.placement.drain``, for such a pool."""
POOL_LOOKS = 60
"""Looks at the clock after which polishing such a pool ends all the same: some 0.1 to 0.6 s."""
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

    ranked = sorted(starts, key=_makespan)
    current = ranked[0]
    for start in _best_pools(ranked, gpus):
        if start.makespan_s <= ranked[0].makespan_s * (1 + CLOSE):
            settled = _settled(lengths, cost, start, seed, out_of_time)
            yield settled
            current = min(current, settled, key=_makespan)
    for start in ranked[:STARTS]:
        polished_start = polish(start)
        yield polished_start
        current = min(current, polished_start, key=_makespan)
    while not out_of_time():
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


def _best_pools(ranked: Sequence[Partition], gpus: int) -> list[Partition]:
    """For each degree the best start on workers of that degree alone, with all that fit; the best first."""
    best: dict[int, Partition] = {}
    for start in ranked:
        if len(set(start.degrees)) == 1:
            best.setdefault(start.degrees[0], start)
    return [_with_idle_gpus(start, gpus, [degree]) for degree, start in best.items()]


def _settled(
    lengths: Floats, cost: DrainingCost, start: Partition, seed: int, out_of_time: OutOfTime
) -> Partition:
    """What ``heddle.placement.drain`` makes of this start with the same seed, in ``POOL_LOOKS`` at most."""
    looks = iter(range(POOL_LOOKS))

    def over() -> bool:
        return next(looks, None) is None or out_of_time()

    return polished(lengths, cost, start, seed=seed, patience=POOL_PATIENCE, out_of_time=over)


def _with_idle_gpus(partition: Partition, gpus: int, allowed: Sequence[int]) -> Partition:
    """The same plan with workers, still empty, on the GPUs that it leaves unused."""
    degrees = list(partition.degrees)
    while fitting := [degree for degree in allowed if degree <= gpus - sum(degrees)]:
        degrees.append(max(fitting))
    empty = (np.empty(0, np.int64),) * (len(degrees) - len(partition.degrees))
    return Partition(tuple(degrees), partition.groups + empty, partition.makespan_s)
