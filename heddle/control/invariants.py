"""What must hold of the control state between any two events, each with the sentence that says so.

Runs after every test, after every simulated event and on idle ticks live. Linear in what is open: one pass
over the trajectories, then the workers' and batches' own counters against what that pass counted.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NoReturn

from heddle.types import BatchId, TrajectoryId, TrajectoryPhase, WorkerId, WorkerPhase

if TYPE_CHECKING:
    from heddle.control.state import BatchState, ControlState, PromptKey, TrajectoryState, WorkerState
    from heddle.control.transfers import Move


class InvariantViolation(AssertionError):
    """The control state contradicts itself: a defect of Heddle, never of its input."""


def check_invariants(state: ControlState) -> None:
    """Raise :class:`InvariantViolation` with the first contradiction found."""
    census = _Census(state)
    for trajectory_id, trajectory in state.trajectories.items():
        if trajectory_id != trajectory.trajectory_id:
            _violated(f"{trajectory_id} is filed under another id")
        census.check_place(trajectory)
        census.count(trajectory)
    for worker in state.workers.values():
        census.check_worker(worker)
    for batch in state.batches.values():
        census.check_batch(batch)
    _check_moves(state)
    _check_whole(state)


def _violated(sentence: str) -> NoReturn:
    raise InvariantViolation(sentence)


class _Census:
    """Counts everything anew, from the trajectories."""

    def __init__(self, state: ControlState) -> None:
        self._state = state
        self._waits_at: dict[TrajectoryId, WorkerId] = {}
        self._kv_tokens: Counter[WorkerId] = Counter()
        self._prompts: set[tuple[WorkerId, PromptKey]] = set()
        self._residents: Counter[WorkerId] = Counter()
        self._running: Counter[WorkerId] = Counter()
        self._waiting: Counter[WorkerId] = Counter()
        self._phases: Counter[tuple[BatchId, TrajectoryPhase]] = Counter()
        for worker in state.workers.values():
            for name in (*worker.queue.ids(), *worker.lot.ids()):
                if name in self._waits_at:
                    _violated(f"{name} waits both at {self._waits_at[name]} and at {worker.worker_id}")
                if name not in state.trajectories:
                    _violated(f"{name} waits at {worker.worker_id} but is unknown")
                self._waits_at[name] = worker.worker_id

    def check_place(self, trajectory: TrajectoryState) -> None:
        """Exactly one place: a slot, one queue, the unplaced pool, or outside (tools, between, cancelled)."""
        state, name, home_id = self._state, trajectory.trajectory_id, trajectory.worker_id
        home = None if home_id is None else state.workers.get(home_id)
        if trajectory.phase is TrajectoryPhase.FINISHED:
            _violated(f"{name} is finished but still remembered")
        if home_id is not None and home is None:
            _violated(f"{name} lives on {home_id}, which does not exist")
        if home is not None and name not in home.residents:
            _violated(f"{name} is no resident of its home")
        waits = _waits(trajectory)
        if self._waits_at.get(name) != (home_id if waits else None):
            _violated(f"{name} ({trajectory.phase}, home {home_id}) waits at {self._waits_at.get(name)}")
        if (name in state.unplaced) != (waits and home is None):
            _violated(f"{name} ({trajectory.phase}, home {home_id}) and the unplaced pool disagree")
        if trajectory.phase is TrajectoryPhase.GENERATING:
            if home is None:
                _violated(f"{name} generates nowhere")
        elif home is not None and home.phase is not WorkerPhase.READY:
            _violated(f"{name} is idle on {home_id}, which is {home.phase}")
        if trajectory.holds_kv and (trajectory.held_back or home is None):
            _violated(f"{name} holds memory of {home_id} that it may not hold")
        if waits and home is not None and trajectory.held_back != (name in home.lot):
            _violated(f"{name} is held back exactly where it is not in the lot")
        batch = state.batches.get(trajectory.batch_id)
        if batch is None or name not in batch.open:
            _violated(f"{name} belongs to no batch")

    def count(self, trajectory: TrajectoryState) -> None:
        """Add one trajectory to the tallies."""
        self._phases[trajectory.batch_id, trajectory.phase] += 1
        if trajectory.worker_id is not None:
            self._residents[trajectory.worker_id] += 1
            self._running[trajectory.worker_id] += trajectory.phase is TrajectoryPhase.GENERATING
            self._waiting[trajectory.worker_id] += _waits(trajectory) and not trajectory.held_back
            if trajectory.holds_kv:
                self._count_memory(trajectory, self._state.workers[trajectory.worker_id])

    def _count_memory(self, trajectory: TrajectoryState, home: WorkerState) -> None:
        held = home.worker_id, trajectory.prompt
        shared = home.shares_prompts and held in self._prompts
        self._prompts.add(held)
        self._kv_tokens[home.worker_id] += trajectory.context_tokens - shared * trajectory.prompt_tokens

    def check_worker(self, worker: WorkerState) -> None:
        """Counters equal the sets, slots are never exceeded, and no slot idles while somebody waits."""
        name = worker.worker_id
        counted = (worker.resident, worker.running, worker.waiting)
        recount = (self._residents[name], self._running[name], self._waiting[name])
        if counted != recount:
            _violated(f"{name} counts (resident, running, waiting) {counted}, but there are {recount}")
        if worker.running > worker.slots + worker.excess:
            _violated(f"{name} runs {worker.running} in {worker.slots} slots")
        if worker.excess and worker.excess != worker.running - worker.slots:
            _violated(f"{name} is allowed {worker.excess} above its slots and needs fewer")
        if worker.kv_tokens != self._kv_tokens[name]:
            _violated(f"{name} counts {worker.kv_tokens} tokens of memory, held are {self._kv_tokens[name]}")
        if worker.holders.keys() != {t for t, state in worker.residents.items() if state.holds_kv}:
            _violated(f"{name} does not know who holds its memory")
        if any(running.rank < worker.lowest_rank for running in worker.generating.values()):
            _violated(f"{name} runs a generation below the lowest rank that it knows")
        if worker.running != len(worker.generating):
            _violated(f"{name} counts {worker.running} running and knows {len(worker.generating)}")
        if worker.preempting is not None and worker.preempting not in worker.generating:
            _violated(f"{name} waits for the interruption of {worker.preempting}, which does not run there")
        if worker.phase is WorkerPhase.STOPPED:
            _violated(f"{name} is stopped but still remembered")
        if worker.stop_ordered and worker.running:
            _violated(f"{name} was ordered to stop while {worker.running} run")
        if worker.phase is WorkerPhase.DRAINING and not worker.running and not worker.stop_ordered:
            _violated(f"{name} is drained but was not ordered to stop")
        serves = worker.phase is WorkerPhase.READY and not self._state.paused
        if serves and worker.running < worker.slots and worker.waiting:
            _violated(f"{name} has a free slot while {worker.waiting} wait for one")
        if serves and not worker.running and worker.lot:
            _violated(f"{name} is idle while {len(worker.lot)} are held back")

    def check_batch(self, batch: BatchState) -> None:
        """A batch is remembered exactly as long as it has open trajectories, and counts them right."""
        name = batch.batch_id
        if not batch.open:
            _violated(f"batch {name} has nothing open but is still remembered")
        for phase in TrajectoryPhase:
            if phase is not TrajectoryPhase.FINISHED and batch.phases[phase] != self._phases[name, phase]:
                _violated(f"batch {name} miscounts its {phase} trajectories")
        if len(batch.open) != sum(self._phases[name, phase] for phase in TrajectoryPhase):
            _violated(f"batch {name} holds trajectories that are unknown")


def _waits(trajectory: TrajectoryState) -> bool:
    """Whether it must be in a queue or in the unplaced pool."""
    return trajectory.phase is TrajectoryPhase.QUEUED and trajectory.cancel_reason is None


def _check_moves(state: ControlState) -> None:
    """One transfer per worker; whoever is to move is in its tools at the source, and the target is there."""
    touching = Counter(worker for move in state.transfers.moves() for worker in move.endpoints)
    for worker in state.workers.values():
        if worker.transfers != touching[worker.worker_id]:
            _violated(
                f"{worker.worker_id} counts {worker.transfers} transfers of {touching[worker.worker_id]}"
            )
    taken: set[WorkerId] = set()
    for move in state.transfers.moves():
        if move.under_way and not taken.isdisjoint(move.endpoints):
            _violated(f"the transfer of {move.trajectory_id} shares a worker with another")
        taken.update(move.endpoints if move.under_way else ())
        if not move.withdrawn:
            _check_move(state, move)
    for move in state.transfers.moves():
        if not move.under_way and taken.isdisjoint(move.endpoints):
            _violated(f"the transfer of {move.trajectory_id} waits though both its workers are free")


def _check_move(state: ControlState, move: Move) -> None:
    trajectory = state.trajectories.get(move.trajectory_id)
    if trajectory is None:
        _violated(f"{move.trajectory_id} is to move but is unknown")
    if trajectory.phase is not TrajectoryPhase.IN_TOOL or trajectory.cancel_reason is not None:
        _violated(f"{move.trajectory_id} is to move but is {trajectory.phase}, not in its tools")
    if trajectory.worker_id != move.source or move.source == move.target:
        _violated(f"{move.trajectory_id} is to leave {move.source} but lives on {trajectory.worker_id}")
    target = state.workers.get(move.target)
    if target is None or target.phase is not WorkerPhase.READY:
        _violated(f"{move.trajectory_id} is to move to {move.target}, which is not ready")


def _check_whole(state: ControlState) -> None:
    """What concerns no single trajectory, worker or batch."""
    strangers = [name for name in state.unplaced if name not in state.trajectories]
    if strangers:
        _violated(f"the unplaced pool holds {strangers}, which are unknown")
    if state.unplaced and state.ready:
        _violated(f"{len(state.unplaced)} are unplaced though a worker is ready")
    ready = sorted(w.worker_id for w in state.workers.values() if w.phase is WorkerPhase.READY)
    if [worker.worker_id for worker in state.ready] != ready:
        _violated("the list of ready workers is out of date")
    started = state.dispatched_total - state.dispatched_at_pause
    if state.paused and started:
        _violated(f"{started} generations started while dispatch was paused")
