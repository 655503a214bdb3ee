"""Allocators by name: the pool as it is spelled out, or workers for the trajectories that are expected.

A planner of ``heddle.control.planning`` chooses the workers by the expected lengths, the profile's step times
and the slots that workers will have. What it leaves of the budget becomes workers too, because lengths are
only expected. ``drain`` takes the homogeneous pool of the highest degree instead where that is as good within
``EQUALLY_GOOD``: it needs no placement by length to be good, and evens out what nobody foresaw. Where nothing
is expected the pool is the one that the settings spell out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count

from heddle.allocation import Fixed, SlotRule
from heddle.control.ports import Allocator
from heddle.errors import ConfigError
from heddle.planning.plan import AllocatorName, PlacerName, PlanRequest
from heddle.planning.profile import Profile, required
from heddle.types import WorkerId, WorkerSpec

ALLOCATORS = tuple(name.value for name in AllocatorName)

SEARCH_LOOKS = 300
"""Looks at the clock within which a search ends. Counted, not timed: a replay must find the same pool."""

EQUALLY_GOOD = 1.05
"""Of the plan's makespan: no price knows tools and prefill, and none is better than that."""


@dataclass(frozen=True, slots=True)
class AllocatorOptions:
    """Where workers come from."""

    pool: str
    slots: SlotRule
    profile: Profile | None = None
    seed: int = 0
    equally_good: float = EQUALLY_GOOD
    """How much longer than its plan the homogeneous pool that ``drain`` takes in its place may need."""


class PlannedAllocator:
    """One of the planners."""

    def __init__(self, planner: AllocatorName, options: AllocatorOptions) -> None:
        """Raises ``ConfigError`` where there is no profile to plan by, or the pool is badly spelled."""
        profile = required(options.profile, f"allocator {planner}")
        self.name = planner.value
        self._planner = planner
        self._profile = _with_slots(profile, options.slots)
        self._otherwise = Fixed(options.pool, options.slots)
        self._seed = options.seed
        self._equally_good = options.equally_good

    def allocate(self, budget: int, expected_tokens: Sequence[int] = ()) -> tuple[WorkerSpec, ...]:
        """See ``Allocator``. Raises ``ConfigError`` where no degree of the profile fits."""
        if not expected_tokens:
            return self._otherwise.allocate(budget)
        degrees = list(self._planned(budget, expected_tokens))
        degrees += self._filling(budget - sum(degrees))
        specs = []
        for index, degree in enumerate(sorted(degrees, reverse=True)):
            slots = self._profile[degree].slots
            assert slots is not None, "every degree was given its slots"
            specs.append(WorkerSpec(WorkerId(f"w{index}"), degree, slots))
        return tuple(specs)

    def _planned(self, budget: int, expected_tokens: Sequence[int]) -> tuple[int, ...]:
        from heddle.control.planning import make_plan  # compiled: half a second to import

        as_in_the_paper = self._planner is AllocatorName.ANNEALING
        looks = count()
        plan = make_plan(
            PlanRequest(
                lengths=[float(tokens) for tokens in expected_tokens],
                gpus=budget,
                profile=self._profile,
                allocator=self._planner,
                placer=PlacerName.PRESORTED_DP if as_in_the_paper else None,
                seed=self._seed,
                deadline_s=float(SEARCH_LOOKS),
                compare=self._planner is AllocatorName.DRAIN,
            ),
            lambda: float(next(looks)),
        )
        good = [c.tp_degree for c in plan.compared if c.makespan_s <= self._equally_good * plan.makespan_s]
        if good:
            return (max(good),) * (budget // max(good))
        return tuple(worker.tp_degree for worker in plan.workers)

    def _filling(self, idle: int) -> list[int]:
        """As few workers as possible on the GPUs that the plan does without."""
        added: list[int] = []
        while fitting := [d.tp_degree for d in self._profile.degrees if d.tp_degree <= idle]:
            added.append(max(fitting))
            idle -= added[-1]
        return added


def make_allocator(name: str, options: AllocatorOptions) -> Allocator:
    """The allocator of this name. Raises ``ConfigError`` that lists the names, or says what is missing."""
    if name not in ALLOCATORS:
        raise ConfigError(f"unknown allocator {name!r}; choose one of {', '.join(ALLOCATORS)}")
    planner = AllocatorName(name)
    if planner is AllocatorName.FIXED:
        return Fixed(options.pool, options.slots)
    return PlannedAllocator(planner, options)


def _with_slots(profile: Profile, rule: SlotRule) -> Profile:
    """The same step times for workers that run no more at once than they have slots."""
    degrees = []
    for degree in profile.degrees:
        slots = rule.of(degree.tp_degree)
        cap = slots if degree.slots is None else min(slots, degree.slots)
        degrees.append(replace(degree, slots=cap))
    return replace(profile, degrees=tuple(degrees))
