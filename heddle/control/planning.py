"""Plans from requests: the one place that puts placers and allocators together.

Placers and allocators do not know one another: an allocator that needs a placer gets it as a function. Pure:
the clock is an argument, and only :func:`make_plan` reads it. Importing this module imports numba (half a
second), so surfaces import it where they plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count

import numpy as np

from heddle.allocation import annealing
from heddle.allocation import drain as drain_allocation
from heddle.allocation import exact as exact_allocation
from heddle.errors import ConfigError
from heddle.placement import drain as drain_placement
from heddle.placement import exact as exact_placement
from heddle.placement import presorted_dp
from heddle.planning.bound import lower_bound
from heddle.planning.cost import (
    DrainingCost,
    SizeCost,
    draining_cost,
    kv_aware_cost,
    kv_aware_price,
    static_cost,
    static_price,
)
from heddle.planning.plan import (
    AllocatorName,
    Compared,
    Indices,
    Partition,
    PlacerName,
    Plan,
    PlannedWorker,
    PlanRequest,
    PriceName,
    checked_lengths,
    usable_degrees,
)
from heddle.planning.profile import DegreeProfile, Floats, Profile

Clock = Callable[[], float]
"""Seconds that only ever grow."""

NEAR_ENOUGH = 1e-4
"""``drain`` ends early once its plan is provably within this, relative, of the best possible."""


@dataclass(frozen=True, slots=True, eq=False)
class _Choice:
    """A request that makes sense, with what it left open filled in."""

    lengths: Floats
    """In the request's order."""
    degrees: tuple[int, ...]
    """Usable ones, descending."""
    placer: PlacerName
    price: PriceName


@dataclass(frozen=True, slots=True, eq=False)
class _Problem:
    """What solvers share."""

    request: PlanRequest
    choice: _Choice
    lengths: Floats
    """Descending."""
    cost: SizeCost | DrainingCost
    out_of_time: Callable[[], bool]


def make_plan(request: PlanRequest, clock: Clock) -> Plan:
    """Solves a request. Raises ``ConfigError`` for one that makes no sense; it says what is wrong.

    Without trajectories the plan has no work and takes 0.0 seconds. The first plan of an installation waits
    for the compiler, the first of a process for machine code to load; neither counts against the deadline.
    """
    choice = _checked(request)
    _load_kernels(request.allocator, choice.placer)
    return _plan(request, choice, clock)


def run_to_end(plan: Plan, request: PlanRequest) -> float:
    """Seconds that a plan takes when its groups are run to their end, event by event: the common judge.

    ``request`` is the one that the plan answers. Raises ``ConfigError`` as :func:`make_plan` does.
    """
    choice = _checked(request)
    cost = _cost(request, choice, PriceName.DRAINING)
    seconds = (cost.seconds(worker.tp_degree, choice.lengths[worker.members]) for worker in plan.workers)
    return max(seconds, default=0.0)


def _plan(request: PlanRequest, choice: _Choice, clock: Clock) -> Plan:
    began = clock()
    order = np.argsort(-choice.lengths, kind="stable")
    problem = _Problem(
        request,
        choice,
        choice.lengths[order],
        _cost(request, choice, choice.price),
        lambda: clock() - began >= request.deadline_s,
    )
    homogeneous: list[Partition] = []
    if request.allocator is AllocatorName.DRAIN:
        # They are candidates of the search, so that it is never worse than what it is compared with.
        homogeneous = [_homogeneous(problem, degree) for degree in choice.degrees]
    partition = _solve(problem, homogeneous)
    solve_ms = (clock() - began) * 1000.0
    if request.compare and not homogeneous:
        homogeneous = [_homogeneous(problem, degree) for degree in choice.degrees]
    workers = _planned_workers(problem, partition, order)
    return Plan(
        workers=workers,
        makespan_s=max((worker.seconds for worker in workers), default=0.0),
        lower_bound_s=lower_bound(problem.lengths, request.gpus, problem.cost),
        price=choice.price,
        compared=_compared(homogeneous) if request.compare else (),
        solve_ms=solve_ms,
    )


@cache
def _load_kernels(allocator: AllocatorName, placer: PlacerName) -> None:
    """Solves a tiny problem the same way: one slot, so that the kernels for those who wait run too, and two
    workers for seven tokens, so that no plan reaches the bound and the search goes on to its end.
    """
    worker = DegreeProfile.measured(1, [(1, 1.0), (2, 1.5)], slots=1)
    request = PlanRequest(
        [3.0, 2.0, 2.0],
        2,
        Profile("", "", 0.0, (worker,)),
        placer=placer,
        allocator=allocator,
        fixed_degree=1 if allocator is AllocatorName.FIXED else None,
    )
    looks = count()
    _plan(request, _checked(request), lambda: 0.002 * next(looks))


def _cost(request: PlanRequest, choice: _Choice, price: PriceName) -> SizeCost | DrainingCost:
    most = len(choice.lengths)
    if price is PriceName.STATIC:
        return static_cost(request.profile, choice.degrees, most)
    priced = kv_aware_cost if price is PriceName.KV_AWARE else draining_cost
    return priced(
        request.profile,
        choice.degrees,
        most,
        slots_per_gpu=request.slots_per_gpu,
        context_tokens=request.context_tokens,
    )


def _checked(request: PlanRequest) -> _Choice:
    lengths = checked_lengths(request.lengths)
    if not (math.isfinite(request.deadline_s) and request.deadline_s >= 0):
        raise ConfigError(f"the deadline must be finite and not negative, got {request.deadline_s}")
    if request.seed < 0:
        raise ConfigError(f"the seed must not be negative, got {request.seed}")
    exact = request.allocator is AllocatorName.EXACT
    if not exact and (request.min_workers is not None or request.max_workers is not None):
        raise ConfigError(f"allocator {request.allocator} cannot limit the number of workers; exact can")
    placer, price = _matching(request)
    usable = _usable(request, request.degrees)
    if request.allocator is AllocatorName.FIXED:
        if request.fixed_degree is None:
            raise ConfigError("allocator fixed needs the degree of its workers")
        usable = tuple(sorted({*usable, *_usable(request, (request.fixed_degree,))}, reverse=True))
    elif request.fixed_degree is not None:
        raise ConfigError(f"a fixed degree means allocator fixed, not {request.allocator}")
    return _Choice(lengths, usable, placer, price)


def _usable(request: PlanRequest, degrees: tuple[int, ...] | None) -> tuple[int, ...]:
    return usable_degrees(
        request.profile,
        request.gpus,
        degrees=degrees,
        kv_heads=request.kv_heads,
        context_tokens=request.context_tokens,
    )


def _matching(request: PlanRequest) -> tuple[PlacerName, PriceName]:
    """Placer and price, where left open what suits the rest. Raises ``ConfigError`` for a contradiction."""
    drains = request.allocator is AllocatorName.DRAIN
    placer = request.placer
    if placer is None:
        drains = drains or request.price is PriceName.DRAINING
        placer = PlacerName.DRAIN if drains else PlacerName.EXACT
    if drains and placer is not PlacerName.DRAIN:
        raise ConfigError(f"allocator drain places by itself and not with {placer}; leave the placer out")
    if request.allocator is AllocatorName.EXACT and placer is not PlacerName.EXACT:
        raise ConfigError(f"allocator exact places by itself and not with {placer}; leave the placer out")
    draining = placer is PlacerName.DRAIN
    price = request.price
    if price is None:
        price = PriceName.DRAINING if draining else PriceName.STATIC
    if draining is not (price is PriceName.DRAINING):
        raise ConfigError(f"placer {placer} does not solve for the price {price}")
    return placer, price


def _solve(problem: _Problem, homogeneous: Sequence[Partition]) -> Partition:
    request, cost = problem.request, problem.cost

    def place(degrees: tuple[int, ...]) -> Partition:
        return _place(problem, degrees)

    if request.fixed_degree is not None:
        return place((request.fixed_degree,) * (request.gpus // request.fixed_degree))
    if request.allocator is AllocatorName.ANNEALING:
        return annealing.allocate(
            request.gpus, cost.degrees, place, seed=request.seed, out_of_time=problem.out_of_time
        )
    if isinstance(cost, SizeCost):
        return exact_allocation.allocate(
            problem.lengths,
            request.gpus,
            cost,
            min_workers=request.min_workers,
            max_workers=request.max_workers,
        )
    by_size = (static_price(cost), kv_aware_price(cost))
    optima = [exact_allocation.allocate(problem.lengths, request.gpus, price) for price in by_size]
    return drain_allocation.allocate(
        problem.lengths,
        request.gpus,
        cost,
        candidates=[*optima, *homogeneous],
        seed=request.seed,
        goal_s=lower_bound(problem.lengths, request.gpus, cost) * (1 + NEAR_ENOUGH),
        out_of_time=problem.out_of_time,
    )


def _place(problem: _Problem, degrees: tuple[int, ...]) -> Partition:
    cost, request = problem.cost, problem.request
    if isinstance(cost, DrainingCost):
        return drain_placement.place(
            problem.lengths, degrees, cost, seed=request.seed, out_of_time=problem.out_of_time
        )
    if problem.choice.placer is PlacerName.PRESORTED_DP:
        return presorted_dp.place(
            problem.lengths, degrees, cost, bundle_below_tokens=request.bundle_below_tokens
        )
    return exact_placement.place(problem.lengths, degrees, cost)


def _homogeneous(problem: _Problem, degree: int) -> Partition:
    """The pool of this degree alone: the optimum of a size price, the best simple plan if draining."""
    pool = (degree,) * (problem.request.gpus // degree)
    if isinstance(problem.cost, SizeCost):
        return exact_placement.place(problem.lengths, pool, problem.cost)
    static = exact_placement.place(problem.lengths, pool, static_price(problem.cost))
    return drain_placement.place(problem.lengths, pool, problem.cost, candidates=[static], patience=0)


def _compared(homogeneous: Sequence[Partition]) -> tuple[Compared, ...]:
    by_degree = sorted(homogeneous, key=lambda partition: partition.degrees[0])
    return tuple(Compared(f"fix-{pool.degrees[0]}", pool.makespan_s, pool.degrees[0]) for pool in by_degree)


def _planned_workers(problem: _Problem, partition: Partition, order: Indices) -> tuple[PlannedWorker, ...]:
    workers = []
    for degree, group in zip(partition.degrees, partition.groups, strict=True):
        lengths = problem.lengths[group]
        first = float(lengths[0]) if len(lengths) else 0.0
        workers.append(PlannedWorker(degree, order[group], first, problem.cost.seconds(degree, lengths)))
    return tuple(sorted(workers, key=lambda worker: (-worker.tp_degree, -worker.first_length)))
