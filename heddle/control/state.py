"""What the control plane knows: trajectories, workers, batches, and the invariants that tie them together.

Owned by one :class:`~heddle.control.plane.ControlPlane`; everybody else reads. Nothing here decides: these
are the primitive moves, each of which keeps every counter right. Iteration follows insertion order
everywhere, so that equal histories give equal commands.

A finished trajectory is dropped at once and its batch with the last of its trajectories: memory follows what
is open, not what was ever done.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from typing import TypeAlias

from heddle.control.commands import Command
from heddle.control.invariants import check_invariants
from heddle.control.shape import PoolShape
from heddle.control.shares import Share, SharedQueue
from heddle.control.transfers import MoveOutcome, MoveRefusal, TransferLine
from heddle.types import (
    NO_STEP,
    BatchId,
    GroupId,
    Prediction,
    StepView,
    StopReason,
    TrajectoryId,
    TrajectoryPhase,
    WorkerId,
    WorkerPhase,
    WorkerSpec,
)


class IgnoreReason(StrEnum):
    """Why an event, or one item of it, changed nothing. Late and foreign events are normal, never fatal."""

    UNKNOWN_TRAJECTORY = "unknown_trajectory"
    """Never submitted, or finished already."""
    UNKNOWN_BATCH = "unknown_batch"
    UNKNOWN_WORKER = "unknown_worker"
    DUPLICATE_BATCH = "duplicate_batch"
    DUPLICATE_TRAJECTORY = "duplicate_trajectory"
    DUPLICATE_WORKER = "duplicate_worker"
    WRONG_PHASE = "wrong_phase"
    """Not possible where the trajectory or worker stands."""
    WRONG_WORKER = "wrong_worker"
    WRONG_STEP = "wrong_step"
    STALE_PREDICTION = "stale_prediction"
    NO_SLOTS = "no_slots"
    """A worker that offers no slot can serve nothing."""
    NO_CHANGE = "no_change"
    """It asked for what is so already."""
    NO_TRANSFER = "no_transfer"
    """The answer to a transfer that is not under way."""


PromptKey: TypeAlias = tuple[GroupId, int]
"""Members of a group whose prompts are equally long have the same one."""


@dataclass(slots=True, eq=False)
class TrajectoryState:
    """One open trajectory; satisfies :class:`~heddle.types.TrajectoryView`."""

    trajectory_id: TrajectoryId
    batch_id: BatchId
    group_id: GroupId
    submitted_at: float
    max_tokens: int
    context_tokens: int
    generated_tokens: int
    steps_done: int
    queued_at: float
    phase_since: float
    phase: TrajectoryPhase = TrajectoryPhase.QUEUED
    worker_id: WorkerId | None = None
    """Its home; ``None`` while it has none."""
    arrival: int = 0
    prediction: Prediction | None = None
    tool_names: tuple[str, ...] = ()
    """Tools that run now."""
    cancel_reason: StopReason | None = None
    """Set once it was ordered to end: it keeps what it holds but gets nothing more."""
    warm: bool = False
    """Its home has computed some prefix of it, so that moving it would cost a recomputation."""
    max_tokens_per_step: int | None = None
    known_total_tokens: int | None = None
    preemptible: bool = True
    admitted_at: float = 0.0
    """When it asked for its current step; interruptions do not change it."""
    rank: float = 0.0
    """With which it queued last: the scheduler's priority and what ageing adds."""
    step_base_tokens: int = 0
    """``generated_tokens`` when its current step began."""
    predicted_at_tokens: int = 0
    """``generated_tokens`` to which ``prediction`` refers."""
    preemptions: int = 0
    """Of its current step."""
    holds_kv: bool = False
    """Its context counts against the memory of its home."""
    held_back: bool = False
    """The guard lets it wait for memory before its next step."""
    moves: int = 0
    """How often its home changed while its tools ran."""
    bound_for: WorkerId | None = None
    """A worker that the pool was reshaped for it: it goes there while its tools run, or after them."""
    move_refused: MoveRefusal | None = None
    """Why it stayed when a move of it was proposed last; ``None`` where that was accepted."""
    workload: str = ""
    prompt_key: str | None = None
    prompt_tokens: int = 0
    last_step: StepView = NO_STEP
    tool_seconds: float = 0.0

    @property
    def prompt(self) -> PromptKey:
        """What it may share with others of its group."""
        return self.group_id, self.prompt_tokens

    @property
    def predicted_remaining_tokens(self) -> float | None:
        """See ``TrajectoryView``."""
        if self.prediction is None:
            return None
        since = self.generated_tokens - self.predicted_at_tokens
        return max(0.0, self.prediction.remaining_tokens - since)


@dataclass(slots=True, eq=False)
class WorkerState:
    """One worker; satisfies :class:`~heddle.types.WorkerView`."""

    worker_id: WorkerId
    tp_degree: int
    slots: int
    phase: WorkerPhase = WorkerPhase.STARTING
    running: int = 0
    placed_total: int = 0
    excess: int = 0
    """Generations above ``slots`` that a worker which came back smaller may still have to see out."""
    kv_capacity_tokens: int | None = None
    prefix_capacity_tokens: int | None = None
    """Context that it can keep, of what runs and of what comes back."""
    kv_limit_tokens: float | None = None
    """Share of it that the guard lets trajectories hold; ``None`` where nothing is guarded."""
    kv_tokens: int = 0
    """Context of all residents that hold some of its memory; a shared prompt counts once."""
    shares_prompts: bool = False
    """Whether it holds the prompt of a group once."""
    prompts: Counter[PromptKey] = field(default_factory=Counter)
    """How many holders have each shared prompt."""
    transfers: int = 0
    """Accepted ones from or to it that have not ended."""
    seconds_per_token: float | None = None
    """Of one generation among others, prefill included; a running mean."""
    preempting: TrajectoryId | None = None
    """Whose interruption was ordered and has not come yet; one at a time."""
    given_up: bool = False
    """It is lost and nobody will start it again."""
    stop_ordered: bool = False
    residents: dict[TrajectoryId, TrajectoryState] = field(default_factory=dict)
    generating: dict[TrajectoryId, TrajectoryState] = field(default_factory=dict)
    lowest_rank: float = math.inf
    """No generation here ranks below it: where that is enough to know, none has to be looked at."""
    holders: dict[TrajectoryId, TrajectoryState] = field(default_factory=dict)
    """Residents that hold some of its memory; no more than fit, however many wait."""
    queue: SharedQueue = field(default_factory=SharedQueue)
    lot: SharedQueue = field(default_factory=SharedQueue)
    """Residents that want a slot and wait for memory before they may queue for one."""

    @property
    def resident(self) -> int:
        """Trajectories whose home this is."""
        return len(self.residents)

    def kv_needed(self, trajectory: TrajectoryState) -> int:
        """By how much ``kv_tokens`` would grow if this trajectory, which holds nothing here, did."""
        shared = self.shares_prompts and trajectory.prompt in self.prompts
        return trajectory.context_tokens - (trajectory.prompt_tokens if shared else 0)

    def kv_freed(self, trajectory: TrajectoryState) -> int:
        """By how much ``kv_tokens`` would fall if this holder held nothing any more."""
        shared = self.shares_prompts and self.prompts[trajectory.prompt] > 1
        return trajectory.context_tokens - (trajectory.prompt_tokens if shared else 0)

    @property
    def waiting(self) -> int:
        """Trajectories that queue here."""
        return len(self.queue)

    @property
    def promising(self) -> bool:
        """Whether it takes work, or will do so without anybody's help."""
        return self.phase is not WorkerPhase.DRAINING and not self.given_up


@dataclass(slots=True, eq=False)
class BatchState:
    """One batch that has open trajectories."""

    batch_id: BatchId
    share: Share = field(default_factory=Share)
    open: dict[TrajectoryId, TrajectoryState] = field(default_factory=dict)
    phases: Counter[TrajectoryPhase] = field(default_factory=Counter)
    """Trajectories by phase, the finished ones included."""


@dataclass(slots=True, eq=False)
class ControlState:
    """Everything the control plane remembers."""

    trajectories: dict[TrajectoryId, TrajectoryState] = field(default_factory=dict)
    workers: dict[WorkerId, WorkerState] = field(default_factory=dict)
    batches: dict[BatchId, BatchState] = field(default_factory=dict)
    ready: tuple[WorkerState, ...] = ()
    """Workers that take work, in order of their ids; follows from ``workers``."""
    unplaced: dict[TrajectoryId, TrajectoryState] = field(default_factory=dict)
    """Queued trajectories for which no worker is ready."""
    transfers: TransferLine = field(default_factory=TransferLine)
    """Moves that were accepted and have not ended."""
    paused: bool = False
    arrivals: int = 0
    """Admissions to a queue so far; numbers the next one."""
    workers_total: int = 0
    events_total: int = 0
    dispatched_total: int = 0
    dispatched_at_pause: int = 0
    finished: Counter[StopReason] = field(default_factory=Counter)
    moves: Counter[MoveOutcome] = field(default_factory=Counter)
    moves_refused: Counter[MoveRefusal] = field(default_factory=Counter)
    shape: PoolShape = field(default_factory=PoolShape)
    ignored: Counter[IgnoreReason] = field(default_factory=Counter)
    last_ignored: IgnoreReason | None = None
    """Why the event handled last changed nothing; ``None`` where it was accepted."""

    def check_invariants(self) -> None:
        """Raise ``InvariantViolation`` where the parts contradict each other. Linear in what is open."""
        check_invariants(self)

    def ignore(self, reason: IgnoreReason) -> list[Command]:
        """Count an event that changes nothing; returns the commands that follow from it: none."""
        self.ignored[reason] += 1
        self.last_ignored = reason
        return []

    @property
    def hopeless(self) -> bool:
        """Whether some worker is lost for good and no other can serve, now or by itself later.

        A pool that was never started or was drained by an operator is not: somebody may start a worker.
        """
        workers = self.workers.values()
        lost = any(w.given_up and w.phase is WorkerPhase.DOWN for w in workers)
        return lost and not any(worker.promising for worker in workers)

    # --------------------------------------------------------------------------------- trajectories

    def add_trajectory(self, trajectory: TrajectoryState, batch: BatchState) -> None:
        """Register a new trajectory, queued but not yet in any queue."""
        self.trajectories[trajectory.trajectory_id] = trajectory
        batch.open[trajectory.trajectory_id] = trajectory
        batch.phases[trajectory.phase] += 1

    def set_phase(self, trajectory: TrajectoryState, phase: TrajectoryPhase, now: float) -> None:
        """Record where it stands now; queues and slots are not touched."""
        phases = self.batches[trajectory.batch_id].phases
        phases[trajectory.phase] -= 1
        phases[phase] += 1
        trajectory.phase = phase
        trajectory.phase_since = now

    def set_home(self, trajectory: TrajectoryState, worker: WorkerState | None) -> None:
        """Make it a resident of ``worker``, or of none; it must not run and not wait in a queue."""
        if trajectory.worker_id is not None:
            self.release_kv(trajectory)
            del self.workers[trajectory.worker_id].residents[trajectory.trajectory_id]
        trajectory.warm = trajectory.held_back = False
        if worker is None or worker.worker_id == trajectory.bound_for:
            trajectory.bound_for = None
        if worker is None:
            trajectory.worker_id = None
            return
        trajectory.worker_id = worker.worker_id
        worker.residents[trajectory.trajectory_id] = trajectory
        worker.placed_total += 1

    def occupy_slot(self, trajectory: TrajectoryState, worker: WorkerState, now: float) -> None:
        """It generates on its home, in one of its slots."""
        self.set_phase(trajectory, TrajectoryPhase.GENERATING, now)
        trajectory.warm = True
        self.hold_kv(trajectory)
        worker.generating[trajectory.trajectory_id] = trajectory
        worker.lowest_rank = min(worker.lowest_rank, trajectory.rank)
        worker.running += 1
        self.dispatched_total += 1

    def free_slot(self, trajectory: TrajectoryState, worker: WorkerState) -> None:
        """Its generation on this worker is over."""
        del worker.generating[trajectory.trajectory_id]
        if worker.preempting == trajectory.trajectory_id:
            worker.preempting = None
        worker.running -= 1
        worker.excess = max(0, min(worker.excess, worker.running - worker.slots))

    def hold_kv(self, trajectory: TrajectoryState) -> None:
        """Its context counts against the memory of its home from now on."""
        if not trajectory.holds_kv and trajectory.worker_id is not None:
            trajectory.holds_kv = True
            home = self.workers[trajectory.worker_id]
            home.kv_tokens += home.kv_needed(trajectory)
            home.holders[trajectory.trajectory_id] = trajectory
            home.prompts[trajectory.prompt] += 1

    def has_room(self, worker: WorkerState, trajectory: TrajectoryState) -> bool:
        """Whether it fits beside what the worker holds and what is on its way there."""
        limit, expected = worker.kv_limit_tokens, self.transfers.expected_tokens(worker.worker_id)
        return limit is None or worker.kv_tokens + expected + worker.kv_needed(trajectory) <= limit

    def release_kv(self, trajectory: TrajectoryState) -> None:
        """Its home may evict what it computed of it."""
        if trajectory.holds_kv and trajectory.worker_id is not None:
            trajectory.holds_kv = False
            home = self.workers[trajectory.worker_id]
            home.kv_tokens -= home.kv_freed(trajectory)
            del home.holders[trajectory.trajectory_id]
            home.prompts[trajectory.prompt] -= 1
            if not home.prompts[trajectory.prompt]:
                del home.prompts[trajectory.prompt]

    def grow(self, trajectory: TrajectoryState, context_tokens: int, generated_tokens: int = 0) -> None:
        """Its context became longer by ``context_tokens``, of which it generated some."""
        trajectory.context_tokens += context_tokens
        trajectory.generated_tokens += generated_tokens
        if trajectory.holds_kv and trajectory.worker_id is not None:
            self.workers[trajectory.worker_id].kv_tokens += context_tokens

    def leave_queue(self, trajectory: TrajectoryState) -> None:
        """Take it out of the queue or the pool in which it waits, if it waits anywhere."""
        if trajectory.phase is not TrajectoryPhase.QUEUED or trajectory.cancel_reason is not None:
            return
        name = trajectory.trajectory_id
        if trajectory.worker_id is None:
            del self.unplaced[name]
            return
        home = self.workers[trajectory.worker_id]
        line = home.lot if trajectory.held_back else home.queue
        line.remove(name, trajectory.batch_id)

    def drop_trajectory(self, trajectory: TrajectoryState, reason: StopReason, now: float) -> None:
        """Forget a finished trajectory, which must hold nothing any more but its home."""
        self.set_home(trajectory, None)
        self.set_phase(trajectory, TrajectoryPhase.FINISHED, now)
        self.finished[reason] += 1
        del self.trajectories[trajectory.trajectory_id]
        batch = self.batches[trajectory.batch_id]
        del batch.open[trajectory.trajectory_id]
        if not batch.open:
            del self.batches[batch.batch_id]
            for worker in self.workers.values():
                worker.queue.forget(batch.batch_id)
                worker.lot.forget(batch.batch_id)

    # -------------------------------------------------------------------------------------- workers

    def unused_worker_id(self) -> WorkerId:
        """``w`` and a number that no worker has had."""
        names = (WorkerId(f"w{number}") for number in count(self.workers_total))
        return next(name for name in names if name not in self.workers)

    def add_worker(self, spec: WorkerSpec) -> None:
        """Register a worker that is being started."""
        self.workers[spec.worker_id] = WorkerState(spec.worker_id, spec.tp_degree, spec.slots)
        self.workers_total += 1

    def set_worker_phase(self, worker: WorkerState, phase: WorkerPhase) -> None:
        """Record where a worker stands; what it holds is not touched."""
        worker.phase = phase
        self._list_ready()

    def drop_worker(self, worker: WorkerState) -> None:
        """Forget a stopped worker, which must hold nothing."""
        worker.phase = WorkerPhase.STOPPED
        del self.workers[worker.worker_id]
        self._list_ready()

    def _list_ready(self) -> None:
        ready = (worker for worker in self.workers.values() if worker.phase is WorkerPhase.READY)
        self.ready = tuple(sorted(ready, key=lambda worker: worker.worker_id))
