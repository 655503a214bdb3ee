"""What solvers are held against: every partition, every sequence of degrees, and a batch run by hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from heddle.planning.cost import DrainingCost, SizeCost
from heddle.planning.kernels.compiled import compiled
from heddle.planning.plan import Indices, Partition, PriceName
from heddle.planning.profile import Floats


def make_lengths(rng: np.random.Generator, most: int = 9) -> Floats:
    """Descending, 0 to ``most`` of them, with many ties and some zeros."""
    count = int(rng.integers(0, most + 1))
    return np.sort(rng.integers(0, int(rng.integers(1, 12)), count).astype(float))[::-1].copy()


def make_steps(rng: np.random.Generator, degrees: int, most: int) -> Floats:
    """Rows of non-decreasing step times with plateaus, first column 0; no order among degrees."""
    rises = rng.integers(0, 3, (degrees, max(most, 1))).astype(float)
    rises[:, 0] = rng.integers(1, 9, degrees)
    return np.concatenate([np.zeros((degrees, 1)), np.cumsum(rises, axis=1)], axis=1)


def make_size_cost(rng: np.random.Generator, degrees: tuple[int, ...], most: int) -> SizeCost:
    """A random size price."""
    return SizeCost(PriceName.STATIC, degrees, make_steps(rng, len(degrees), most))


def make_draining_cost(rng: np.random.Generator, degrees: tuple[int, ...], most: int) -> DrainingCost:
    """A random draining price, often with caps that bind."""
    caps = rng.integers(1, max(most, 1) + 1, len(degrees))
    return DrainingCost(degrees, make_steps(rng, len(degrees), most), caps.astype(np.int64))


def make_degrees(rng: np.random.Generator) -> tuple[int, ...]:
    """One to three different degrees, descending."""
    chosen = rng.choice([1, 2, 3, 4], int(rng.integers(1, 4)), replace=False)
    return tuple(sorted((int(degree) for degree in chosen), reverse=True))


def group_prices(lengths: Floats, cost: SizeCost | DrainingCost) -> Floats:
    """Price of every subset at every degree; shape ``(degrees, 2 ** n)``, bit ``i`` is member ``i``."""
    prices = np.zeros((len(cost.degrees), 1 << len(lengths)))
    for subset in range(1, 1 << len(lengths)):
        members = np.array([i for i in range(len(lengths)) if subset >> i & 1])
        for row, degree in enumerate(cost.degrees):
            prices[row, subset] = cost.seconds(degree, lengths[members])
    return prices


@compiled
def best_of_all(prices: Floats, before: Indices) -> Floats:
    """Least makespan in each state over all partitions; ``before[state, row]`` as in ``planning.reach``."""
    everything = prices.shape[1] - 1
    best = np.full((len(before), everything + 1), np.inf)
    best[0, 0] = 0.0
    for state in range(1, len(before)):
        for row in range(len(prices)):
            earlier = before[state, row]
            if earlier < 0:
                continue
            for done in range(everything + 1):
                group = done
                while True:
                    makespan = max(best[earlier, done ^ group], prices[row, group])
                    best[state, done] = min(best[state, done], makespan)
                    if group == 0:
                        break
                    group = (group - 1) & done
    return best[:, everything].copy()


def pools(gpus: int, degrees: Sequence[int]) -> list[tuple[int, ...]]:
    """Every set of workers within the budget, at least one worker."""
    found: list[tuple[int, ...]] = []
    for count in range(1, gpus // min(degrees) + 1):
        combinations = itertools.combinations_with_replacement(sorted(degrees, reverse=True), count)
        found += [pool for pool in combinations if sum(pool) <= gpus]
    return found


def by_hand(lengths: Floats, cost: SizeCost | DrainingCost, pool: Sequence[int]) -> float:
    """Least makespan of the literal enumeration: each trajectory on each worker."""
    best = np.inf
    for owners in itertools.product(range(len(pool)), repeat=len(lengths)):
        seconds = [
            cost.seconds(degree, lengths[[i for i, owner in enumerate(owners) if owner == worker]])
            for worker, degree in enumerate(pool)
        ]
        best = min(best, max(seconds))
    return float(best)


def run_batch(lengths: Sequence[float], step_seconds: Callable[[int], float], cap: int) -> float:
    """Runs a group event by event: longest first, ``cap`` at once, the next in line when one ends."""
    waiting = sorted(lengths, reverse=True)
    running: list[float] = []
    now = 0.0
    while waiting or running:
        while waiting and len(running) < cap:
            running.append(waiting.pop(0))
        tokens = min(running)
        now += tokens * step_seconds(len(running))
        running = [left - tokens for left in running if left > tokens]
    return now


def assert_is_partition(partition: Partition, lengths: Floats, cost: SizeCost | DrainingCost) -> None:
    """Every position once, each group longest first, and the makespan is the dearest group's price."""
    members = np.concatenate([*partition.groups, np.empty(0, np.int64)])
    assert sorted(members.tolist()) == list(range(len(lengths)))
    assert all(np.all(np.diff(group) > 0) for group in partition.groups)
    pairs = zip(partition.degrees, partition.groups, strict=True)
    seconds = [cost.seconds(degree, lengths[group]) for degree, group in pairs]
    assert partition.makespan_s == max(seconds, default=0.0)
