"""The paper's Algorithm 2: simulated annealing over the workers' degrees, initialised sorted.

An allocation is a list of degrees in descending order; the given placer prices it, and the longest run of the
sorted trajectories meets the highest degree. It starts from random degrees that fill the budget, sorted; the
initial temperature is the initial makespan. Every step redistributes, splits or merges workers, accepts a
better allocation always and a worse one with probability ``exp(-loss / temperature)``, and cools, until the
temperature falls below a fraction of its start or the deadline passes. The best allocation seen is the
result: never worse than the start.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from heddle.errors import ConfigError
from heddle.planning.plan import Partition

Degrees = tuple[int, ...]

COOLING = 0.98
FREEZING = 1e-3
"""Fraction of the initial temperature at which the search ends: 342 steps with ``COOLING``."""


def allocate(
    gpus: int,
    degrees: Sequence[int],
    place: Callable[[Degrees], Partition],
    *,
    seed: int,
    out_of_time: Callable[[], bool] = lambda: False,
) -> Partition:
    """Workers of the allowed ``degrees`` and the groups that ``place`` makes for them.

    ``place`` gets a descending list of degrees. Raises ``ConfigError`` where no degree fits the budget.
    """
    rng = random.Random(seed)
    allowed = sorted(degree for degree in set(degrees) if degree <= gpus)
    if not allowed:
        raise ConfigError(f"no worker fits the budget of {gpus} GPUs; degrees: {tuple(degrees)}")
    current = place(random_start(gpus, allowed, rng))
    best = current
    temperature = current.makespan_s
    frozen = temperature * FREEZING
    while temperature > frozen and not out_of_time():
        temperature *= COOLING
        proposed = neighbour(current.degrees, gpus, allowed, rng)
        if proposed == current.degrees:
            continue
        candidate = place(proposed)
        loss = candidate.makespan_s - current.makespan_s
        if loss <= 0 or rng.random() < math.exp(-loss / temperature):
            current = candidate
        if current.makespan_s < best.makespan_s:
            best = current
    return best


def random_start(gpus: int, allowed: Sequence[int], rng: random.Random) -> Degrees:
    """Random degrees until the budget has no room for another, descending."""
    return _filled([], gpus, allowed, rng)


def neighbour(current: Degrees, gpus: int, allowed: Sequence[int], rng: random.Random) -> Degrees:
    """One random redistribution, split or merge; ``current`` itself where the one drawn is impossible.

    As in the paper the degrees always use up the budget: what a transition leaves over becomes new workers.
    """
    transition = rng.choice((_redistribute, _split, _merge))
    return _filled(transition(list(current), gpus, allowed, rng), gpus, allowed, rng)


def _redistribute(current: list[int], gpus: int, allowed: Sequence[int], rng: random.Random) -> list[int]:
    """GPUs of one worker to another: one falls by a degree, the other rises as far as they reach, or less."""
    if len(current) > 1:
        giver, taker = rng.sample(range(len(current)), 2)
        lower = [degree for degree in allowed if degree < current[giver]]
        if lower:
            current[giver] = lower[-1]
            room = gpus - sum(current) + current[taker]
            current[taker] = rng.choice([d for d in allowed if current[taker] <= d <= room])
    return current


def _split(current: list[int], gpus: int, allowed: Sequence[int], rng: random.Random) -> list[int]:
    """One worker becomes two smaller ones on its GPUs."""
    splittable = [worker for worker, degree in enumerate(current) if degree >= 2 * allowed[0]]
    if splittable:
        room = current.pop(rng.choice(splittable))
        first = rng.choice([degree for degree in allowed if degree <= room - allowed[0]])
        current += [first, max(degree for degree in allowed if degree <= room - first)]
    return current


def _merge(current: list[int], gpus: int, allowed: Sequence[int], rng: random.Random) -> list[int]:
    """Two workers become the largest that their GPUs allow."""
    if len(current) > 1:
        pair = rng.sample(range(len(current)), 2)
        joined = sum(current[worker] for worker in pair)
        current = [degree for worker, degree in enumerate(current) if worker not in pair]
        current.append(max(degree for degree in allowed if degree <= joined))
    return current


def _filled(chosen: list[int], gpus: int, allowed: Sequence[int], rng: random.Random) -> Degrees:
    """With random further degrees as long as one fits, descending."""
    while fitting := [degree for degree in allowed if degree <= gpus - sum(chosen)]:
        chosen.append(rng.choice(fitting))
    return tuple(sorted(chosen, reverse=True))
