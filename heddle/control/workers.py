"""What follows from the events of workers: they are started, come, crash, drain and go."""

from __future__ import annotations

from heddle.control.commands import Command, StartWorker
from heddle.control.dispatch import Dispatcher
from heddle.control.events import (
    PoolRequested,
    WorkerAdded,
    WorkerDrainRequested,
    WorkerLost,
    WorkerReady,
    WorkerStopped,
)
from heddle.control.moves import Moves
from heddle.control.ports import Allocator
from heddle.control.state import ControlState, IgnoreReason
from heddle.types import StopReason, WorkerPhase, WorkerSpec


class WorkerEvents:
    """Handlers of worker events, each returning the commands that follow."""

    def __init__(
        self, state: ControlState, dispatcher: Dispatcher, allocator: Allocator, moves: Moves
    ) -> None:
        self._state = state
        self._dispatcher = dispatcher
        self._moves = moves
        self._allocator = allocator

    def pool_requested(self, event: PoolRequested) -> list[Command]:
        """Start the workers that the budget is made into. Raises ``ConfigError`` where none fit."""
        specs = self._allocator.allocate(event.budget, event.expected_tokens)
        return [command for spec in specs for command in self.start(spec)]

    def worker_added(self, event: WorkerAdded) -> list[Command]:
        """Start one more worker."""
        return self.start(event.spec)

    def worker_ready(self, event: WorkerReady, now: float) -> list[Command]:
        """It takes work, and gets its share of what waits."""
        worker = self._state.workers.get(event.worker_id)
        if worker is None:
            return self._state.ignore(IgnoreReason.UNKNOWN_WORKER)
        if worker.phase not in (WorkerPhase.STARTING, WorkerPhase.DOWN):
            return self._state.ignore(IgnoreReason.WRONG_PHASE)
        if event.slots < 1:
            return self._state.ignore(IgnoreReason.NO_SLOTS)
        worker.given_up = False
        worker.slots = event.slots
        # Generations of its former life may not have been reported as interrupted yet.
        worker.excess = max(0, worker.running - worker.slots)
        worker.kv_capacity_tokens = event.kv_capacity_tokens
        worker.prefix_capacity_tokens = event.prefix_capacity_tokens or event.kv_capacity_tokens
        if not worker.holders:  # what generates there from a former life was counted as it was then
            worker.shares_prompts = event.shares_prompts
        self._dispatcher.guard.watch(worker)
        self._state.set_worker_phase(worker, WorkerPhase.READY)
        self._dispatcher.spread(now)
        self._moves.prepare()
        return self._dispatcher.serve_all(now)

    def worker_lost(self, event: WorkerLost, now: float) -> list[Command]:
        """What waits there goes elsewhere; what runs there is interrupted by events of its own."""
        worker = self._state.workers.get(event.worker_id)
        if worker is None:
            return self._state.ignore(IgnoreReason.UNKNOWN_WORKER)
        worker.given_up = not event.will_restart
        commands: list[Command] = []
        if worker.phase is not WorkerPhase.DRAINING:
            self._state.set_worker_phase(worker, WorkerPhase.DOWN)
            commands += self._moves.withdraw_from(worker)
            self._dispatcher.evacuate(worker, now)
            self._moves.prepare()
        commands += self._dispatcher.serve(worker, now) + self._dispatcher.serve_all(now)
        if not event.will_restart:
            detail = f"worker {event.worker_id} is lost for good ({event.reason}) and no other is left"
            commands += self._end_all_if_hopeless(detail)
        return commands

    def drain_requested(self, event: WorkerDrainRequested, now: float) -> list[Command]:
        """It takes nothing new and stops when nothing runs there."""
        worker = self._state.workers.get(event.worker_id)
        if worker is None:
            return self._state.ignore(IgnoreReason.UNKNOWN_WORKER)
        if worker.phase is WorkerPhase.DRAINING:
            return self._state.ignore(IgnoreReason.NO_CHANGE)
        self._state.set_worker_phase(worker, WorkerPhase.DRAINING)
        commands = self._moves.withdraw_from(worker)
        self._dispatcher.evacuate(worker, now)
        self._moves.prepare()
        commands += self._dispatcher.serve(worker, now) + self._dispatcher.serve_all(now)
        detail = f"worker {event.worker_id} was drained and every other is lost for good"
        return commands + self._end_all_if_hopeless(detail)

    def worker_stopped(self, event: WorkerStopped) -> list[Command]:
        """It is gone, as ordered."""
        worker = self._state.workers.get(event.worker_id)
        if worker is None:
            return self._state.ignore(IgnoreReason.UNKNOWN_WORKER)
        if not worker.stop_ordered:
            return self._state.ignore(IgnoreReason.WRONG_PHASE)
        self._state.drop_worker(worker)
        return []

    def _end_all_if_hopeless(self, detail: str) -> list[Command]:
        """Where no worker can ever serve them, open trajectories end now and not at their time limit."""
        if not self._state.hopeless:
            return []
        return [
            command
            for trajectory in self._state.trajectories.values()
            for command in self._dispatcher.cancel(trajectory, StopReason.ENGINE_FAILED, detail)
        ]

    def start(self, spec: WorkerSpec) -> list[Command]:
        """One more worker, unless there is one of that id."""
        if spec.worker_id in self._state.workers:
            return self._state.ignore(IgnoreReason.DUPLICATE_WORKER)
        self._state.add_worker(spec)
        return [StartWorker(spec)]
