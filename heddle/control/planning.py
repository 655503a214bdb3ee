"""Plans from requests: the one place that puts placers and allocators together.

Placers and allocators do not know one another: an allocator that needs a placer gets it as a function. Pure:
the clock is an argument, and only :func:`make_plan` reads it. Importing this module imports numba (half a
second), so surfaces import it where they plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from heddle.allocation import annealing
from heddle.allocation import drain as drain_allocation
from heddle.allocation import exact as exact_allocation
from heddle.errors import ConfigError
from heddle.placement import drain as drain_placement
from heddle.placement import exact as exact_placement
from heddle.placement import presorted_dp
from heddle.planning.bound import lower_bound
from heddle.planning.cost import DrainingCost, SizeCost, draining_cost, kv_aware_cost, static_cost
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
from heddle.planning.profile import Floats

Clock = Callable[[], float]
"""Seconds that only ever grow."""

NEAR_ENOUGH = 1e-4
"""``drain`` ends early once its plan is provably within this, relative, of the best possible."""


@dataclass(frozen=True, slots=True, eq=False)
class _Problem:
    """A checked request: what solvers share."""

    request: PlanRequest
    lengths: Floats
    """Descending."""
    degrees: tuple[int, ...]
    """Usable ones, descending."""
    placer: PlacerName
    price: PriceName
    out_of_time: Callable[[], bool]

    def size_cost(self, name: PriceName) -> SizeCost:
        most = len(self.lengths)
        if name is PriceName.STATIC:
            return static_cost(self.request.profile, self.degrees, most)
        return kv_aware_cost(
            self.request.profile,
            self.degrees,
            most,
            slots_per_gpu=self.request.slots_per_gpu,
            context_tokens=self.request.context_tokens,
        )

    def draining_cost(self) -> DrainingCost:
        return draining_cost(
            self.request.profile,
            self.degrees,
            len(self.lengths),
            slots_per_gpu=self.request.slots_per_gpu,
            context_tokens=self.request.context_tokens,
        )

    def cost(self) -> SizeCost | DrainingCost:
        return self.draining_cost() if self.price is PriceName.DRAINING else self.size_cost(self.price)


def make_plan(request: PlanRequest, clock: Clock) -> Plan:
    """Solves a request. Raises ``ConfigError`` for one that makes no sense; it says what is wrong.

    Without trajectories the plan has no work and takes 0.0 seconds.
    """
    began = clock()
    problem, order = _checked(request, lambda: clock() - began >= request.deadline_s)
    cost = problem.cost()
    bound = lower_bound(problem.lengths, request.gpus, cost)
    homogeneous: list[Partition] = []
    if request.allocator is AllocatorName.DRAIN:
        # They are candidates of the search, so that it is never worse than what it is compared with.
        homogeneous = [_homogeneous(problem, cost, degree) for degree in problem.degrees]
    partition = _solve(problem, cost, homogeneous, bound)
    solve_ms = (clock() - began) * 1000.0
    if request.compare and not homogeneous:
        homogeneous = [_homogeneous(problem, cost, degree) for degree in problem.degrees]
    workers = _planned_workers(problem, cost, partition, order)
    return Plan(
        workers=workers,
        makespan_s=max((worker.seconds for worker in workers), default=0.0),
        lower_bound_s=bound,
        price=problem.price,
        compared=_compared(homogeneous) if request.compare else (),
        solve_ms=solve_ms,
    )


def run_to_end(plan: Plan, request: PlanRequest) -> float:
    """Seconds that a plan takes when its groups are run to their end, event by event: the common judge.

    ``request`` is the one that the plan answers. Raises ``ConfigError`` as :func:`make_plan` does.
    """
    problem, _ = _checked(request, lambda: True)
    cost = problem.draining_cost()
    lengths = checked_lengths(request.lengths)
    return max(
        (cost.seconds(worker.tp_degree, lengths[worker.members]) for worker in plan.workers), default=0.0
    )


def _checked(request: PlanRequest, out_of_time: Callable[[], bool]) -> tuple[_Problem, Indices]:
    """The problem, and the request's index of each position in descending order."""
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
    order = np.argsort(-lengths, kind="stable")
    return _Problem(request, lengths[order], usable, placer, price, out_of_time), order


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


def _solve(
    problem: _Problem, cost: SizeCost | DrainingCost, homogeneous: Sequence[Partition], bound: float
) -> Partition:
    request = problem.request

    def place(degrees: tuple[int, ...]) -> Partition:
        return _place(problem, cost, degrees)

    if request.fixed_degree is not None:
        return place((request.fixed_degree,) * (request.gpus // request.fixed_degree))
    if request.allocator is AllocatorName.ANNEALING:
        return annealing.allocate(
            request.gpus, problem.degrees, place, seed=request.seed, out_of_time=problem.out_of_time
        )
    if isinstance(cost, SizeCost):
        return exact_allocation.allocate(
            problem.lengths,
            request.gpus,
            cost,
            min_workers=request.min_workers,
            max_workers=request.max_workers,
        )
    by_size = [problem.size_cost(name) for name in (PriceName.STATIC, PriceName.KV_AWARE)]
    optima = [exact_allocation.allocate(problem.lengths, request.gpus, price) for price in by_size]
    return drain_allocation.allocate(
        problem.lengths,
        request.gpus,
        cost,
        candidates=[*optima, *homogeneous],
        seed=request.seed,
        goal_s=bound * (1 + NEAR_ENOUGH),
        out_of_time=problem.out_of_time,
    )


def _place(problem: _Problem, cost: SizeCost | DrainingCost, degrees: tuple[int, ...]) -> Partition:
    if isinstance(cost, DrainingCost):
        return drain_placement.place(
            problem.lengths, degrees, cost, seed=problem.request.seed, out_of_time=problem.out_of_time
        )
    if problem.placer is PlacerName.PRESORTED_DP:
        return presorted_dp.place(
            problem.lengths, degrees, cost, bundle_below_tokens=problem.request.bundle_below_tokens
        )
    return exact_placement.place(problem.lengths, degrees, cost)


def _homogeneous(problem: _Problem, cost: SizeCost | DrainingCost, degree: int) -> Partition:
    """The pool of this degree alone: the optimum of a size price, the best simple plan if draining."""
    pool = (degree,) * (problem.request.gpus // degree)
    if isinstance(cost, SizeCost):
        return exact_placement.place(problem.lengths, pool, cost)
    static = exact_placement.place(problem.lengths, pool, problem.size_cost(PriceName.STATIC))
    return drain_placement.place(problem.lengths, pool, cost, candidates=[static], patience=0)


def _compared(homogeneous: Sequence[Partition]) -> tuple[Compared, ...]:
    by_degree = sorted(homogeneous, key=lambda partition: partition.degrees[0])
    return tuple(Compared(f"fix-{pool.degrees[0]}", pool.makespan_s) for pool in by_degree)


def _planned_workers(
    problem: _Problem, cost: SizeCost | DrainingCost, partition: Partition, order: Indices
) -> tuple[PlannedWorker, ...]:
    workers = []
    for degree, group in zip(partition.degrees, partition.groups, strict=True):
        lengths = problem.lengths[group]
        first = float(lengths[0]) if len(lengths) else 0.0
        workers.append(PlannedWorker(degree, order[group], first, cost.seconds(degree, lengths)))
    return tuple(sorted(workers, key=lambda worker: (-worker.tp_degree, -worker.first_length)))
