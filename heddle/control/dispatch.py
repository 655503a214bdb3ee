"""Queues and slots: where a trajectory waits, which worker it gets, and when it generates.

The only module that moves trajectories between queues, slots and homes, on behalf of the handlers of
trajectory and worker events. It asks the scheduler for ranks and the placer for homes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from heddle.control.commands import Cancel, Command, Generate, Preempt, StopWorker
from heddle.control.guard import GuardRules, MemoryGuard
from heddle.control.ports import Placer, Scheduler
from heddle.control.preemption import Preemption, PreemptionRules
from heddle.control.state import ControlState, TrajectoryState, WorkerState
from heddle.control.transfers import MoveOutcome
from heddle.types import StopReason, TrajectoryPhase, WorkerPhase


@dataclass(frozen=True, slots=True)
class DispatchRules:
    """What holds whichever scheduler ranks."""

    preemption: PreemptionRules = field(default_factory=PreemptionRules)
    guard: GuardRules = field(default_factory=GuardRules)
    ageing_per_s: float = 0.0
    """Added to a rank for each second of waiting, in the scheduler's units. Right for a stream that never
    ends; a synchronous batch ends anyway, and only its last trajectory counts."""


DEFAULT_RULES = DispatchRules()


class Dispatcher:
    """Moves trajectories; every method leaves the state consistent up to the ``serve`` that must follow."""

    def __init__(
        self, state: ControlState, scheduler: Scheduler, placer: Placer, rules: DispatchRules
    ) -> None:
        self._state = state
        self._scheduler = scheduler
        self._placer = placer
        self._ageing_per_s = rules.ageing_per_s
        self._preemption = Preemption(state, scheduler, rules.preemption)
        self.guard = MemoryGuard(state, rules.guard)

    def admit(self, trajectory: TrajectoryState, now: float) -> None:
        """It wants its next step: it joins the queue at the end of the line."""
        self._state.arrivals += 1
        trajectory.arrival = self._state.arrivals
        trajectory.admitted_at = now
        self.wait(trajectory, now)

    def wait(self, trajectory: TrajectoryState, now: float) -> None:
        """It waits at its home, which is chosen anew where it is gone; its place in the line stays."""
        trajectory.queued_at = now
        if trajectory.phase is not TrajectoryPhase.QUEUED:
            self._state.set_phase(trajectory, TrajectoryPhase.QUEUED, now)
        if trajectory.cancel_reason is None:
            self._join_queue(trajectory, now)

    def serve(self, worker: WorkerState, now: float) -> list[Command]:
        """What a worker may do now: generate in its free slots, or stop if it is drained."""
        if worker.phase is WorkerPhase.DRAINING:
            return self._retire(worker)
        if worker.phase is not WorkerPhase.READY or self._state.paused:
            return []
        commands: list[Command] = []
        self._let_in(worker, now)
        while worker.running < worker.slots and (worker.queue or self._invited(worker, now)):
            contender = self._state.trajectories[worker.queue.peek().trajectory_id]
            if self.guard.admits(contender, worker, now):
                commands.append(self._start_next(worker, now))
            else:
                self.guard.hold_back(contender, worker)
                self._let_in(worker, now)
        victim = self._preemption.victim(worker, now)
        if victim is not None and self._next_fits(worker, now):
            worker.preempting = victim.trajectory_id
            commands.append(Preempt(victim.trajectory_id, worker.worker_id))
        return commands

    def serve_all(self, now: float) -> list[Command]:
        """``serve`` for every ready worker, in order of their ids."""
        return [command for worker in self._state.ready for command in self.serve(worker, now)]

    def serve_home(self, trajectory: TrajectoryState, now: float) -> list[Command]:
        """``serve`` for the worker that a trajectory has just joined, if it found one."""
        if trajectory.worker_id is None:
            return []
        return self.serve(self._state.workers[trajectory.worker_id], now)

    def end_generation(self, trajectory: TrajectoryState, worker: WorkerState) -> None:
        """Its slot is free; a worker that takes no more work is its home no longer.

        The caller must set its next phase.
        """
        self._state.free_slot(trajectory, worker)
        if worker.phase is not WorkerPhase.READY:
            self._state.set_home(trajectory, None)

    def move_home(self, trajectory: TrajectoryState, worker: WorkerState, *, warm: bool = False) -> None:
        """Its home becomes ``worker``, while it neither runs nor waits; ``warm``: with its context."""
        self._state.set_home(trajectory, worker)
        if warm:
            trajectory.warm = True
            self._state.hold_kv(trajectory)

    def prepare(self) -> None:
        """A batch came or the pool changed: the placer may plan for all that is open."""
        self._placer.prepare(tuple(self._state.trajectories.values()), self._state.ready)

    def rehome(self, trajectory: TrajectoryState) -> None:
        """Before its next step: to where it is bound, or to another home if the placer wants it.

        It neither runs nor waits.
        """
        home_id = trajectory.worker_id
        if home_id is None or self._state.workers[home_id].phase is not WorkerPhase.READY:
            return
        if trajectory.bound_for is not None:
            target = self._state.workers[trajectory.bound_for]
            if target.phase is WorkerPhase.READY and self._state.has_room(target, trajectory):
                self.move_home(trajectory, target)
                trajectory.moves += 1
                self._state.moves[MoveOutcome.MOVED] += 1
            return
        chosen = self._placer.rehome(trajectory, self._state.ready)
        if chosen is not None and chosen != home_id:
            self.move_home(trajectory, self._state.workers[chosen])

    def evacuate(self, worker: WorkerState, now: float) -> None:
        """Everything but running generations leaves a worker that takes no more work."""
        idle = [t for t in worker.residents.values() if t.phase is not TrajectoryPhase.GENERATING]
        idle.sort(key=_by_arrival)
        for trajectory in idle:
            self._state.leave_queue(trajectory)
            self._state.set_home(trajectory, None)
        self.prepare()
        for trajectory in idle:
            if trajectory.phase is TrajectoryPhase.QUEUED and trajectory.cancel_reason is None:
                self._join_queue(trajectory, now)

    def spread(self, now: float) -> None:
        """Give a worker that came its share: place everything again that waits and has nothing to lose.

        That is the unplaced pool, and whatever waits at a home that has computed nothing of it yet.
        """
        cold = list(self._state.unplaced.values())
        for worker in self._state.ready:
            waiting = (self._state.trajectories[name] for name in (*worker.queue.ids(), *worker.lot.ids()))
            cold.extend(trajectory for trajectory in waiting if not trajectory.warm)
        cold.sort(key=_by_arrival)
        # All leave before any is placed: the placer is to see the loads without them.
        for trajectory in cold:
            self._state.leave_queue(trajectory)
            self._state.set_home(trajectory, None)
        self.prepare()
        for trajectory in cold:
            self._join_queue(trajectory, now)

    def cancel(self, trajectory: TrajectoryState, reason: StopReason, detail: str) -> list[Command]:
        """Order its end, once. It keeps its slot until it has ended, but leaves its queue at once."""
        if trajectory.cancel_reason is not None:
            return []
        self._state.leave_queue(trajectory)
        trajectory.cancel_reason = reason
        return [Cancel(trajectory.trajectory_id, reason, detail)]

    def rank_anew(self, trajectory: TrajectoryState, now: float) -> None:
        """What its rank follows from has changed; its place among equals stays."""
        if trajectory.worker_id is None:
            return
        home = self._state.workers[trajectory.worker_id]
        for line in (home.queue, home.lot):
            if trajectory.trajectory_id in line:
                line.remove(trajectory.trajectory_id, trajectory.batch_id)
                self._join_queue(trajectory, now)
                return

    def _join_queue(self, trajectory: TrajectoryState, now: float) -> None:
        if trajectory.worker_id is None:
            if not self._state.ready:
                self._state.unplaced[trajectory.trajectory_id] = trajectory
                return
            chosen = self._placer.place(trajectory, self._state.ready)
            self._state.set_home(trajectory, self._state.workers[chosen])
            home = self._state.workers[chosen]
        else:
            home = self._state.workers[trajectory.worker_id]
        # All age alike, so the order of two never changes while they wait: when each came is enough.
        aged = self._ageing_per_s * trajectory.admitted_at
        trajectory.rank = self._scheduler.priority(trajectory, now) - aged
        if trajectory.held_back:
            self.guard.park(trajectory, home)
            return
        home.queue.push(trajectory.trajectory_id, trajectory.batch_id, trajectory.rank, trajectory.arrival)

    def _let_in(self, worker: WorkerState, now: float) -> None:
        """Whoever waits for memory and can have it queues for a slot."""
        for trajectory in self.guard.returning(worker, now):
            self._join_queue(trajectory, now)

    def _invited(self, worker: WorkerState, now: float) -> bool:
        """Whether somebody came who waits for memory elsewhere, where this worker has nobody to serve.

        Its home holds nothing of it, so that it has nothing to lose; the placer is asked all the same.
        """
        if worker.kv_limit_tokens is None or worker.lot:
            return False
        crowded = max(self._state.ready, key=lambda other: len(other.lot))
        if not crowded.lot:
            return False
        guest = self._state.trajectories[crowded.lot.peek().trajectory_id]
        pair = sorted((crowded, worker), key=lambda one: one.worker_id)
        wanted = guest.bound_for is None and self._state.has_room(worker, guest)
        if not wanted or self._placer.rehome(guest, pair) != worker.worker_id:
            return False
        self._state.leave_queue(guest)
        self._state.set_home(guest, worker)
        self._join_queue(guest, now)
        return True

    def _next_fits(self, worker: WorkerState, now: float) -> bool:
        """Whether a preemption would help: whoever is next has its memory or can be given some."""
        contender = self._state.trajectories[worker.queue.peek().trajectory_id]
        return self.guard.admits(contender, worker, now)

    def _start_next(self, worker: WorkerState, now: float) -> Generate:
        batch_id = worker.queue.peek().batch_id
        trajectory_id, _, rank = worker.queue.pop(self._state.batches[batch_id].share, now)
        trajectory = self._state.trajectories[trajectory_id]
        self._state.occupy_slot(trajectory, worker, now)
        return Generate(trajectory_id, worker.worker_id, trajectory.steps_done, rank, trajectory.prediction)

    def _retire(self, worker: WorkerState) -> list[Command]:
        """Order a drained worker to stop, once. One that was given up is forgotten with the order.

        Its supervision has ended, so that nobody is left who would report it as stopped.
        """
        if worker.running:
            return []
        commands: list[Command] = [] if worker.stop_ordered else [StopWorker(worker.worker_id)]
        worker.stop_ordered = True
        if worker.given_up:
            self._state.drop_worker(worker)
        return commands


def _by_arrival(trajectory: TrajectoryState) -> int:
    return trajectory.arrival
