"""The pool's shape while the last trajectories run: given up, made anew, and brought back.

    as asked for --reshape--> starting --all up--> reshaped --nothing open, or another batch--> as asked for
                                 |                    |
                                 +-- a start fails, or a new worker is lost for good: the pool grows back

While the new workers start, trajectories go on where they are. Those that are to move are *bound* for a new
worker when it is ready: they go there by the planner's means while their tools run, else before their next
step. A shape that an operator asks for stands: what went before is forgotten.

The pool grows back as soon as nothing is open, which for a trainer that waits for its batch costs nothing;
where another batch comes before that, at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from heddle.control.commands import Command, Preempt
from heddle.control.events import WorkerDrainRequested, WorkerLost
from heddle.control.moves import Moves
from heddle.control.ports import Reshape, Reshaper
from heddle.control.shape import ReshapeOutcome
from heddle.control.state import ControlState, TrajectoryState
from heddle.control.workers import WorkerEvents
from heddle.types import TrajectoryPhase, WorkerId, WorkerPhase, WorkerSpec

DEFAULT_START_S = 60.0
"""From the order to start a worker until it serves: process, weights from the page cache, CUDA graphs."""

LONG_STEP_S = 2.0
"""Of a generation that is then interrupted to move: one that has lasted so long will likely last as long
again, and to compute even a long context anew takes little more than a second."""


@dataclass(frozen=True, slots=True)
class ReshapeRules:
    """What holds whichever reshaper proposes."""

    slots: Callable[[int], int]
    """Of a worker of a degree."""
    start_s: float = DEFAULT_START_S
    """Expected until one start was measured."""
    most: int = 3
    """Reshapes of one batch."""
    look_share: float = 0.875
    """Of the trajectories that were open at the last look, which must be left before the next one."""


class Reshapes:
    """Handlers that the control plane calls beside those of the same events."""

    def __init__(
        self,
        state: ControlState,
        workers: WorkerEvents,
        moves: Moves,
        reshaper: Reshaper,
        rules: ReshapeRules,
    ) -> None:
        self._state = state
        self._workers = workers
        self._moves = moves
        self._reshaper = reshaper
        self._rules = rules
        self._former: list[int] = []
        """Degrees of the workers that gave way and are to come back."""
        self._fresh: list[WorkerId] = []
        """Workers that were started instead."""
        self._starting: dict[WorkerId, float] = {}
        """Those of them that never came up yet, and when they were ordered."""
        self._done = 0
        """Reshapes of this batch."""
        self._looked_at: int | None = None
        """Open trajectories at the last look at this batch."""

    def observe(self, trajectory: TrajectoryState) -> None:
        """It reached its own end: its length may tell of others."""
        self._reshaper.observe_finished(trajectory)

    def trajectory_finished(self, now: float) -> list[Command]:
        """One less is open: perhaps few enough."""
        state = self._state
        if not state.trajectories:
            self._looked_at, self._done = None, 0
            return self._restore(now)
        if not self._may_look():
            return []
        self._looked_at = len(state.trajectories)
        proposal = self._reshaper.propose(state.ready, state.shape.start_s or self._rules.start_s)
        return [] if proposal is None else self._reshape(proposal, now)

    def batch_comes(self, now: float) -> list[Command]:
        """Before it is placed: the pool that was asked for is wanted back."""
        self._looked_at, self._done = None, 0
        return self._restore(now)

    def worker_ready(self, worker_id: WorkerId, now: float) -> list[Command]:
        """One of the new workers may be up: those that it was started for are bound for it."""
        if worker_id not in self._fresh or self._state.workers[worker_id].phase is not WorkerPhase.READY:
            return []
        ordered_at = self._starting.pop(worker_id, None)
        if ordered_at is not None:
            self._state.shape.start_s = now - ordered_at
            self._state.shape.outcomes[ReshapeOutcome.DONE] += not self._starting
        return self._bind(now)

    def worker_lost(self, event: WorkerLost, now: float) -> list[Command]:
        """A new worker that does not come up at once, or never again, was no good idea."""
        if event.worker_id not in self._fresh:
            return []
        self._unbind([event.worker_id])
        if event.will_restart and event.worker_id not in self._starting:
            return []
        self._state.shape.outcomes[ReshapeOutcome.FAILED] += 1
        commands = self._restore(now)
        self._done = self._rules.most
        return commands

    def forget(self) -> None:
        """An operator shapes the pool: that is how it stays."""
        self._unbind(self._fresh)
        self._former, self._fresh = [], []
        self._starting = {}

    def _may_look(self) -> bool:
        state = self._state
        few = self._looked_at is None or len(state.trajectories) <= self._rules.look_share * self._looked_at
        return (
            few
            and self._done < self._rules.most
            and len(state.batches) == 1
            and not state.paused
            and state.shape.weights_reloadable
            and len(state.ready) == len(state.workers)
            # Whoever is on the way to a new worker is not seen there yet.
            and all(trajectory.bound_for is None for trajectory in state.trajectories.values())
        )

    def _reshape(self, proposal: Reshape, now: float) -> list[Command]:
        self._done += 1
        self._state.shape.outcomes[ReshapeOutcome.ORDERED] += 1
        commands: list[Command] = []
        for worker_id in proposal.drain:
            if worker_id in self._fresh:
                self._fresh.remove(worker_id)
                self._unbind([worker_id])
            else:
                self._former.append(self._state.workers[worker_id].tp_degree)
            commands += self._workers.drain_requested(WorkerDrainRequested(worker_id), now)
        for tp_degree in proposal.degrees:
            spec = self._spec(tp_degree)
            self._fresh.append(spec.worker_id)
            self._starting[spec.worker_id] = now
            commands += self._workers.start(spec)
        return commands

    def _restore(self, now: float) -> list[Command]:
        """The former workers are started before the others go: so there is always one to come."""
        if not self._former:
            return []
        self._state.shape.outcomes[ReshapeOutcome.RESTORED] += 1
        former, fresh = self._former, self._fresh
        self.forget()
        commands = [command for degree in former for command in self._workers.start(self._spec(degree))]
        for worker_id in fresh:
            commands += self._workers.drain_requested(WorkerDrainRequested(worker_id), now)
        return commands

    def _spec(self, tp_degree: int) -> WorkerSpec:
        return WorkerSpec(self._state.unused_worker_id(), tp_degree, self._rules.slots(tp_degree))

    def _bind(self, now: float) -> list[Command]:
        commands: list[Command] = []
        ready = [worker.worker_id for worker in self._state.ready if worker.worker_id in self._fresh]
        for name, worker_id in self._reshaper.assign(self._state.ready, ready).items():
            trajectory = self._state.trajectories[name]
            trajectory.bound_for = worker_id
            if trajectory.phase is TrajectoryPhase.IN_TOOL:
                commands += self._moves.consider(trajectory, now)
            elif self._is_stuck(trajectory, now):
                commands.append(self._interrupt(trajectory))
        return commands

    def _is_stuck(self, trajectory: TrajectoryState, now: float) -> bool:
        """Whether it would keep everybody waiting for the end of a long step where it is."""
        if trajectory.phase is not TrajectoryPhase.GENERATING or trajectory.worker_id is None:
            return False
        return (
            trajectory.preemptible
            and trajectory.cancel_reason is None
            and self._state.workers[trajectory.worker_id].preempting is None
            and now - trajectory.phase_since >= LONG_STEP_S
        )

    def _interrupt(self, trajectory: TrajectoryState) -> Command:
        """It goes on at its new home with what it has; at most one of a worker, the longest."""
        assert trajectory.worker_id is not None, "only who generates is interrupted"
        self._state.workers[trajectory.worker_id].preempting = trajectory.trajectory_id
        return Preempt(trajectory.trajectory_id, trajectory.worker_id)

    def _unbind(self, workers: Collection[WorkerId]) -> None:
        for trajectory in self._state.trajectories.values():
            if trajectory.bound_for in workers:
                trajectory.bound_for = None
