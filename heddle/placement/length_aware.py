"""Homes by predicted length: the solvers of this package as running placers.

When a batch comes or the pool changes, everything open is planned at once: long trajectories to few workers
of high degree, short ones together. What has a home keeps it; the rest goes where the plan says. Lengths are
hedged by what the predictor has earned (see ``heddle.planning.hedge``): without any trust all count as equal,
and a plan of equals is a spread by what each worker can carry. Where nothing was predicted, some worker has
no step times in the profile, memory is too small for all contexts, or all count as equal on workers that are
alike, trajectories are spread as by ``sticky_group``; the paper's own placer spreads as by
``sticky_least_loaded``. Whoever waits for memory goes where there is some.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING, Protocol

import numpy as np

from heddle.control.ports import Placer
from heddle.placement.options import PlacerOptions
from heddle.placement.sticky_group import StickyGroup
from heddle.placement.sticky_least_loaded import StickyLeastLoaded
from heddle.planning.hedge import hedged_lengths
from heddle.planning.plan import Indices, Partition
from heddle.planning.profile import DegreeProfile, Floats, Profile, required
from heddle.planning.trust import earned
from heddle.types import TrajectoryId, TrajectoryPhase, TrajectoryView, WorkerId, WorkerView

if TYPE_CHECKING:
    from heddle.planning.cost import DrainingCost

LEVELS = 0.1, 0.5, 0.9
"""Of the quantiles in a ``Prediction``."""

SEARCH_LOOKS = 30
"""Rounds of the local search of ``drain``. Counted, not timed: a replay must find the same plan."""

LEVEL_WITHIN = 1.02
"""Times the plan's makespan within which groups are made alike in size: tools and prompts have no price, so
that a plan's last percent is worth less than what it costs all others."""

SEARCH_PATIENCE = 4_000
"""Fruitless tries in a row after which it ends earlier."""


class Solver(Protocol):
    """Groups of descending lengths for workers of the given descending degrees, in that order."""

    def __call__(
        self, lengths: Floats, degrees: tuple[int, ...], cost: DrainingCost, seed: int
    ) -> Partition: ...


class LengthAware:
    """A plan for all that is open, and an even spread for what it does not know."""

    def __init__(self, name: str, solver: Solver, options: PlacerOptions, *, hedged: bool = True) -> None:
        """``hedged``: whether trust matters; the paper's own placer believes what it is told.

        Raises ``ConfigError`` where ``options`` lack a profile.
        """
        self.name = name
        self._solver = solver
        self._profile = required(options.profile, f"placer {name}")
        self._trust = options.trust
        self._seed = options.seed
        self._hedged = hedged
        self._homes: dict[TrajectoryId, WorkerId] = {}
        self._unplanned: Placer = StickyGroup() if hedged else StickyLeastLoaded()

    def prepare(self, trajectories: Sequence[TrajectoryView], workers: Sequence[WorkerView]) -> None:
        """Plan anew, and forget the plan before."""
        self._homes = {}
        self._unplanned.prepare(trajectories, workers)
        if not workers or all(trajectory.worker_id is not None for trajectory in trajectories):
            return
        trust = earned(self._trust()) if self._hedged else 1.0
        lengths = remaining_lengths(trajectories, trust)
        if lengths is None or not _all_priced(workers, self._profile):
            return
        ordered = sorted(workers, key=lambda worker: (-worker.tp_degree, worker.worker_id))
        descending = np.argsort(-lengths, kind="stable")
        cost = _cost(self._profile, trajectories, ordered, lengths)
        degrees = tuple(worker.tp_degree for worker in ordered)
        if self._hedged and _memory_binds(self._profile, trajectories, degrees):
            return
        if trust == 0.0 and len({(worker.tp_degree, worker.slots) for worker in workers}) == 1:
            return
        if self._solver is exact and any(t.worker_id is not None for t in trajectories):
            owners = _beside_residents(trajectories, ordered, lengths, cost)
        else:
            plan = self._solver(lengths[descending], degrees, cost, self._seed)
            owners = np.empty(len(lengths), np.int64)
            for index, group in enumerate(plan.groups):
                owners[descending[group]] = index
        for trajectory, owner in zip(trajectories, owners.tolist(), strict=True):
            if trajectory.worker_id is None:
                self._homes[trajectory.trajectory_id] = ordered[owner].worker_id

    def place(self, trajectory: TrajectoryView, workers: Sequence[WorkerView]) -> WorkerId:
        """As planned, once; without a plan as they come."""
        planned = self._homes.pop(trajectory.trajectory_id, None)
        if planned is not None and any(worker.worker_id == planned for worker in workers):
            return planned
        return self._unplanned.place(trajectory, workers)

    def rehome(self, trajectory: TrajectoryView, workers: Sequence[WorkerView]) -> WorkerId | None:
        """It stays, for moves are the migration planner's; where it waits for memory it goes to who has some.

        But not to a worker of a lower degree: whoever was placed on a fast one may be long.
        """
        home = next((w for w in workers if w.worker_id == trajectory.worker_id), None)
        if not self._hedged or trajectory.phase is not TrajectoryPhase.QUEUED or home is None:
            return None
        as_fast = (w for w in workers if w is not home and w.tp_degree >= home.tp_degree)
        return next((worker.worker_id for worker in as_fast), None)


def load_kernels(solver: Solver) -> None:
    """Compile what a solver runs, or load what was compiled earlier: a tiny problem is solved.

    Takes seconds at first. Three trajectories on workers with one slot: two of them wait for others.
    """
    from heddle.planning.cost import draining_cost  # compiled: half a second to import

    profile = Profile("", "", 0.0, (DegreeProfile.measured(1, [(1, 1.0), (2, 1.5)], slots=1),))
    lengths, cost = np.array([3.0, 2.0, 2.0]), draining_cost(profile, (1,), 3)
    solver(lengths, (1, 1), cost, 0)
    if solver is exact:
        from heddle.planning.residents import relief

        relief(lengths, np.zeros(3, np.int64), (1, 1), cost, np.zeros(3))


def remaining_lengths(trajectories: Sequence[TrajectoryView], trust: float) -> Floats | None:
    """Tokens still to generate of each, hedged; shape ``(n,)``. ``None`` where nobody's was predicted.

    One without a prediction counts as the mean of the others.
    """
    rows = [_quantiles(trajectory) for trajectory in trajectories]
    known = np.array([row for row in rows if row is not None], np.float64)
    if not len(known):
        return None
    mean = known.mean(axis=0)
    return hedged_lengths(LEVELS, np.array([mean if row is None else row for row in rows]), trust)


def _quantiles(trajectory: TrajectoryView) -> tuple[float, float, float] | None:
    prediction, middle = trajectory.prediction, trajectory.predicted_remaining_tokens
    if prediction is None or middle is None:
        return None
    since = prediction.remaining_tokens - middle
    return (
        max(0.0, min(middle, prediction.low_tokens - since)),
        middle,
        max(middle, prediction.high_tokens - since),
    )


def _all_priced(workers: Sequence[WorkerView], profile: Profile) -> bool:
    known = {degree.tp_degree for degree in profile.degrees}
    return all(worker.tp_degree in known for worker in workers)


def _memory_binds(profile: Profile, trajectories: Sequence[TrajectoryView], degrees: Sequence[int]) -> bool:
    """Whether all contexts together are more than the workers hold.

    Then memory and not the batch limits each worker, contexts do not follow the lengths that are predicted,
    and an even spread loses less than any group of long ones does.
    """
    context = max(profile.context_tokens, float(np.mean([t.context_tokens for t in trajectories])))
    capacities = [profile[degree].kv_capacity_tokens for degree in degrees]
    known = [capacity for capacity in capacities if capacity is not None]
    return len(known) == len(capacities) and sum(known) < context * len(trajectories)


def _cost(
    profile: Profile, trajectories: Sequence[TrajectoryView], workers: Sequence[WorkerView], lengths: Floats
) -> DrainingCost:
    """Prices with the slots that the workers really have, and contexts half grown."""
    from heddle.planning.cost import DrainingCost, draining_cost  # compiled: half a second to import

    degrees = tuple(sorted({worker.tp_degree for worker in workers}, reverse=True))
    context = float(np.mean([trajectory.context_tokens for trajectory in trajectories]) + lengths.mean() / 2)
    capacities = [profile[degree].kv_capacity_tokens for degree in degrees]
    context = min([context, *(float(capacity) for capacity in capacities if capacity)])
    cost = draining_cost(profile, degrees, len(lengths), context_tokens=context)
    slots = [min(w.slots for w in workers if w.tp_degree == degree) for degree in degrees]
    return DrainingCost(cost.degrees, cost.steps, np.minimum(cost.caps, np.array(slots, np.int64)))


def _beside_residents(
    trajectories: Sequence[TrajectoryView], workers: Sequence[WorkerView], lengths: Floats, cost: DrainingCost
) -> Indices:
    """The worker of each trajectory by an exact plan that leaves residents where they are.

    What they take of a worker, those without a home do not get of it.
    """
    from heddle.planning.residents import relief

    index_of = {worker.worker_id: index for index, worker in enumerate(workers)}
    # Who lives on a worker that takes no more work goes through this again when it leaves.
    homes = [-1 if t.worker_id is None else index_of.get(t.worker_id, -1) for t in trajectories]
    stays = [np.inf if t.worker_id is not None else 0.0 for t in trajectories]
    degrees = tuple(worker.tp_degree for worker in workers)
    return relief(lengths, np.array(homes, np.int64), degrees, cost, np.array(stays)).owners


def presorted_dp(lengths: Floats, degrees: tuple[int, ...], cost: DrainingCost, seed: int) -> Partition:
    """The paper's recurrence at the paper's price."""
    from heddle.placement.presorted_dp import place
    from heddle.planning.cost import static_price

    return place(lengths, degrees, static_price(cost))


def exact(lengths: Floats, degrees: tuple[int, ...], cost: DrainingCost, seed: int) -> Partition:
    """The optimum of the price that lets what exceeds slots and KV capacity wait."""
    from heddle.placement.exact import place
    from heddle.planning.cost import kv_aware_price

    return place(lengths, degrees, kv_aware_price(cost))


def drain(lengths: Floats, degrees: tuple[int, ...], cost: DrainingCost, seed: int) -> Partition:
    """The best found when groups are run to their end, and of almost equally good ones an even one."""
    from heddle.placement.drain import place
    from heddle.planning.drain_groups import levelled

    looks = count()
    plan = place(
        lengths,
        degrees,
        cost,
        seed=seed,
        patience=SEARCH_PATIENCE,
        out_of_time=lambda: next(looks) >= SEARCH_LOOKS,
    )
    return levelled(lengths, cost, plan, plan.makespan_s * LEVEL_WITHIN)
