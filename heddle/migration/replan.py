"""Moves that a plan asks for: who is to live where is planned anew, from what remains, every few events.

The plan (``heddle.planning.residents``) begins with the exact optimum of what remains and keeps residents
where they are as far as its makespan allows. It is followed only where it saves a good part of what is left
and several times what its moves cost. Who it wants elsewhere moves when its tools start, if the pair of
workers is done sooner by more than that costs then (``gate``): what a plan was made for has changed since.

Without trust nothing is planned: all lengths would count as equal, and who is placed evenly stays so. Nor is
anything where memory and not the batch limits the workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from heddle.control.ports import MigrationProposal
from heddle.migration.gate import HYSTERESIS, Gate
from heddle.migration.options import MigrationOptions
from heddle.planning.drains import cap_of
from heddle.planning.profile import DegreeProfile, Profile, required
from heddle.types import TrajectoryId, TrajectoryPhase, TrajectoryView, WorkerId, WorkerView

if TYPE_CHECKING:
    from heddle.planning.cost import DrainingCost

EVERY_SHARE = 16
"""A plan is made when tools have started for this part of the trajectories, so that its cost a proposal does
not grow with them."""
EVERY_LEAST = 4
"""But not more often than once in so many."""
GAIN = 0.02
"""Of what is left to wait for, that a plan must save: prices know neither tools nor prompts."""

NO_MOVES: Mapping[TrajectoryId, WorkerId] = MappingProxyType({})


class ReplanMigration:
    """Proposes at most one move for each trajectory that enters its tools."""

    name = "replan"

    def __init__(self, options: MigrationOptions) -> None:
        """Raises ``ConfigError`` where ``options`` lack a profile."""
        self._gate = Gate(self.name, options)
        self._profile = required(options.profile, f"migration {self.name}")
        self._options = options
        self._moves = NO_MOVES
        self._until_next = 0
        """Proposals that are left to the plan."""

    def prepare(self, trajectories: Sequence[TrajectoryView], workers: Sequence[WorkerView]) -> None:
        """The plan before holds no longer."""
        self._gate.reset(trajectories, workers)
        self._moves = NO_MOVES
        self._until_next = 0

    def propose(
        self, in_tool: Sequence[TrajectoryView], workers: Sequence[WorkerView], now: float
    ) -> Iterable[MigrationProposal]:
        """See the module."""
        if not self._gate.prices(workers):
            return
        self._gate.renew(workers)
        if not self._gate.trust:
            self._moves = NO_MOVES
            return
        self._until_next -= len(in_tool)
        if self._until_next <= 0:
            self._plan(workers)
        if not self._moves:
            return
        by_id = {worker.worker_id: worker for worker in workers}
        for trajectory in in_tool:
            wanted = self._moves.get(trajectory.trajectory_id)
            if wanted is None or trajectory.worker_id is None:
                continue
            source, target = by_id.get(trajectory.worker_id), by_id.get(wanted)
            if source is None or target is None or not self._gate.admits(trajectory, source, target):
                continue
            proposal = self._gate.best(trajectory, source, (target,))
            if proposal is not None:
                yield proposal

    def forget(self, trajectory_id: TrajectoryId) -> None:
        """Whoever ended enters no tools any more; the next plan is made without it."""

    def _plan(self, workers: Sequence[WorkerView]) -> None:
        """Where workers end as good as together there is nothing to plan."""
        members = sum(worker.resident for worker in workers)
        self._until_next = max(EVERY_LEAST, members // EVERY_SHARE)
        mean_s = sum(self._gate.seconds(worker) for worker in workers) / len(workers)
        uneven = members > 0 and self._gate.last_s() > (1 + GAIN) * mean_s
        self._moves = self._moves_of(workers) if uneven else NO_MOVES

    def _moves_of(self, workers: Sequence[WorkerView]) -> Mapping[TrajectoryId, WorkerId]:
        """Whom the best plan wants elsewhere, if it pays."""
        from heddle.planning.residents import relief  # compiled: half a second to import

        ordered = sorted(workers, key=lambda worker: (-worker.tp_degree, worker.worker_id))
        names, tokens, contexts, home = [], [], [], []
        for index, worker in enumerate(ordered):
            for trajectory in worker.residents.values():
                if trajectory.phase is not TrajectoryPhase.ENDING:
                    names.append(trajectory.trajectory_id)
                    tokens.append(self._gate.hedged(trajectory.predicted_remaining_tokens))
                    contexts.append(trajectory.context_tokens)
                    home.append(index)
        if not names or _memory_binds(workers, sum(contexts)):
            return NO_MOVES
        homes = np.array(home, np.int64)
        degrees = tuple(worker.tp_degree for worker in ordered)
        costs_s = np.array(contexts, np.float64) * self._options.token_s(max(degrees))
        cost = self._cost(ordered, len(names), sum(contexts) / len(names))
        found = relief(np.array(tokens), homes, degrees, cost, costs_s)
        moved = np.flatnonzero(found.owners != homes)
        if not len(moved):
            return NO_MOVES
        price_s = HYSTERESIS * float(costs_s[moved].mean())
        if found.now_s - found.then_s <= price_s + GAIN * found.now_s:
            return NO_MOVES
        return {names[member]: ordered[found.owners[member]].worker_id for member in moved.tolist()}

    def _cost(self, workers: Sequence[WorkerView], members: int, context_tokens: float) -> DrainingCost:
        """Prices with the slots and the memory that workers really have; workers descend by degree."""
        from heddle.planning.cost import DrainingCost

        degrees = tuple(dict.fromkeys(worker.tp_degree for worker in workers))
        steps = np.stack([self._profile[degree].step_table(members) for degree in degrees])
        caps = [
            min(cap_of(worker, context_tokens) for worker in workers if worker.tp_degree == degree)
            for degree in degrees
        ]
        return DrainingCost(degrees, steps, np.minimum(np.array(caps, np.int64), members))


def _memory_binds(workers: Sequence[WorkerView], context_tokens: int) -> bool:
    """Whether all contexts together are more than the workers hold: then memory and not the batch limits
    each, who waits for memory goes to who has some anyway, and prices of batches say little."""
    limits = [worker.kv_limit_tokens for worker in workers]
    known = [limit for limit in limits if limit is not None]
    return len(known) == len(limits) and sum(known) < context_tokens


def load_kernels() -> None:
    """Compile what a plan runs, or load what was compiled earlier: a tiny problem is solved.

    Two workers with one slot each, and everybody on one of them: some wait, and some should move.
    """
    from heddle.planning.cost import draining_cost  # compiled: half a second to import
    from heddle.planning.residents import relief

    profile = Profile("", "", 0.0, (DegreeProfile.measured(1, [(1, 1.0), (2, 1.5)], slots=1),))
    lengths, nowhere_else = np.array([3.0, 2.0, 2.0]), np.zeros(3, np.int64)
    relief(lengths, nowhere_else, (1, 1), draining_cost(profile, (1,), len(lengths)), np.zeros(3))
