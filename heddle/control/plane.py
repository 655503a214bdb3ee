"""The control plane: events in, commands out.

``handle`` is the only method that changes anything. It is synchronous and deterministic: the same events at
the same times give the same commands, byte for byte, which is what ``heddle replay`` verifies. It never
waits, and it knows no clock, no socket and no file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from heddle.control import queries
from heddle.control.commands import Command
from heddle.control.dispatch import DEFAULT_RULES, Dispatcher, DispatchRules
from heddle.control.events import (
    BatchCancelled,
    BatchSubmitted,
    DispatchPaused,
    DispatchResumed,
    Event,
    GenerationInterrupted,
    LearningTurn,
    LengthPredicted,
    PoolRequested,
    PredictorRestored,
    StepGenerated,
    ToolsFinished,
    ToolsStarted,
    TrajectoryEnding,
    TrajectoryFinished,
    TransferFailed,
    TransferFinished,
    WeightsCommitted,
    WorkerAdded,
    WorkerDrainRequested,
    WorkerLost,
    WorkerReady,
    WorkerStopped,
)
from heddle.control.moves import DEFAULT_MOVE_RULES, MoveRules, Moves
from heddle.control.ports import Allocator, LengthPredictor, MigrationPlanner, Placer, Reshaper, Scheduler
from heddle.control.queries import ControlExplanation, ControlGauges, WaitingGroup
from heddle.control.reshapes import ReshapeRules, Reshapes
from heddle.control.state import ControlState, IgnoreReason
from heddle.control.trajectories import TrajectoryEvents
from heddle.control.workers import WorkerEvents
from heddle.errors import NotFound
from heddle.planning.transfer_rate import TransferRate
from heddle.types import BatchId, TrajectoryId, TrajectoryPhase, WorkerId, WorkerView


class ControlPlane:
    """Owns the state of all trajectories and workers, and decides what is done next."""

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        placer: Placer,
        allocator: Allocator,
        migration: MigrationPlanner,
        predictor: LengthPredictor,
        reshaper: Reshaper,
        reshape_rules: ReshapeRules,
        rules: DispatchRules = DEFAULT_RULES,
        move_rules: MoveRules = DEFAULT_MOVE_RULES,
        transfer_rate: TransferRate | None = None,
    ) -> None:
        """``transfer_rate`` learns from the plane's transfers; the planner may ask it."""
        self.state = ControlState()
        """For reading and for ``check_invariants``."""
        self._dispatcher = Dispatcher(self.state, scheduler, placer, rules)
        self.transfer_rate = transfer_rate or TransferRate()
        """For reading."""
        self._moves = Moves(self.state, self._dispatcher, migration, move_rules, self.transfer_rate)
        self._workers = WorkerEvents(self.state, self._dispatcher, allocator, self._moves)
        self._reshapes = Reshapes(self.state, self._workers, self._moves, reshaper, reshape_rules)
        self._trajectories = TrajectoryEvents(
            self.state, self._dispatcher, predictor, self._moves, self._reshapes
        )
        self.predictor = predictor
        """For reading: its trust, and what it has learned."""

    def handle(self, event: Event, now: float) -> list[Command]:
        """Apply one event; returns the commands that follow, in the order in which to carry them out.

        ``now`` is in seconds of a clock that does not run backwards. An event that is late or foreign
        changes nothing and gives no commands: ``last_ignored`` says why. Raises ``ConfigError`` for a
        ``PoolRequested`` that no allocation fits and for a ``PredictorRestored`` that the predictor cannot
        read, and nothing else.
        """
        self.state.events_total += 1
        self.state.last_ignored = None
        match event:
            # The four of every step first: a match is tried from the top.
            case StepGenerated():
                return self._trajectories.step_generated(event, now)
            case ToolsStarted():
                return self._trajectories.tools_started(event, now)
            case ToolsFinished():
                return self._trajectories.tools_finished(event, now)
            case LengthPredicted():
                return self._trajectories.length_predicted(event, now)
            case TrajectoryEnding():
                return self._trajectories.trajectory_ending(event, now)
            case TrajectoryFinished():
                return self._trajectories.trajectory_finished(event, now)
            case TransferFinished():
                return self._moves.transfer_finished(event, now)
            case TransferFailed():
                return self._moves.transfer_failed(event, now)
            case GenerationInterrupted():
                return self._trajectories.generation_interrupted(event, now)
            case BatchSubmitted():
                return self._trajectories.batch_submitted(event, now)
            case BatchCancelled():
                return self._trajectories.batch_cancelled(event, now)
            case LearningTurn():
                self.predictor.settle()
                return []
            case PredictorRestored():
                return self._trajectories.predictor_restored(event)
            case WeightsCommitted():
                self.state.shape.weights_reloadable = event.reloadable
                return []
            case DispatchPaused():
                return self._pause()
            case DispatchResumed():
                return self._resume(now)
            case _:
                return self._handle_worker_event(event, now)

    def _handle_worker_event(
        self,
        event: PoolRequested | WorkerAdded | WorkerReady | WorkerLost | WorkerDrainRequested | WorkerStopped,
        now: float,
    ) -> list[Command]:
        match event:
            case PoolRequested():
                self._reshapes.forget()
                return self._workers.pool_requested(event)
            case WorkerAdded():
                self._reshapes.forget()
                return self._workers.worker_added(event)
            case WorkerReady():
                commands = self._workers.worker_ready(event, now)
                return commands + self._reshapes.worker_ready(event.worker_id, now)
            case WorkerLost():
                commands = self._workers.worker_lost(event, now)
                return commands + self._reshapes.worker_lost(event, now)
            case WorkerDrainRequested():
                self._reshapes.forget()
                return self._workers.drain_requested(event, now)
            case WorkerStopped():
                return self._workers.worker_stopped(event)

    def _pause(self) -> list[Command]:
        if self.state.paused:
            return self.state.ignore(IgnoreReason.NO_CHANGE)
        self.state.paused = True
        self.state.dispatched_at_pause = self.state.dispatched_total
        return []

    def _resume(self, now: float) -> list[Command]:
        if not self.state.paused:
            return self.state.ignore(IgnoreReason.NO_CHANGE)
        self.state.paused = False
        return self._dispatcher.serve_all(now)

    # ------------------------------------------------------------------------------------- queries

    @property
    def last_ignored(self) -> IgnoreReason | None:
        """Why the event handled last (or an item of it) changed nothing; ``None`` where it was accepted."""
        return self.state.last_ignored

    def explain(self, trajectory_id: TrajectoryId, now: float) -> ControlExplanation:
        """What an open trajectory waits for. Raises ``NotFound``."""
        return queries.explain(self.state, trajectory_id, now)

    def explain_batch(self, batch_id: BatchId, now: float) -> Sequence[WaitingGroup]:
        """Whom a batch waits for, the longest wait first; empty where it is not open."""
        return queries.explain_batch(self.state, batch_id, now)

    def gauges(self) -> ControlGauges:
        """The state in numbers."""
        return queries.gauges(self.state)

    def worker_views(self) -> Sequence[WorkerView]:
        """All workers, in the order in which they were asked for."""
        return tuple(self.state.workers.values())

    def batch_phases(self, batch_id: BatchId) -> Mapping[TrajectoryPhase, int]:
        """Trajectories of a batch by phase, finished ones included; empty once all have finished."""
        batch = self.state.batches.get(batch_id)
        return {} if batch is None else {phase: n for phase, n in batch.phases.items() if n}

    def queue(self, worker_id: WorkerId, limit: int) -> Sequence[TrajectoryId]:
        """Who waits at a worker, in the order in which they will run. Raises ``NotFound``."""
        worker = self.state.workers.get(worker_id)
        if worker is None:
            raise NotFound(f"no worker {worker_id}")
        return worker.queue.first(limit)

    def unused_worker_id(self) -> WorkerId:
        """An id for a worker to add: ``w`` and a number that no worker has had."""
        return self.state.unused_worker_id()
