"""What must hold of the control state between any two events, each with the sentence that says so.

Runs after every test, after every simulated event and on idle ticks live; costs O(everything).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from heddle.types import TrajectoryPhase, WorkerPhase

if TYPE_CHECKING:
    from heddle.control.state import BatchState, ControlState, TrajectoryState, WorkerState


class InvariantViolation(AssertionError):
    """The control state contradicts itself: a defect of Heddle, never of its input."""


def check_invariants(state: ControlState) -> None:
    """Raise :class:`InvariantViolation` with the first contradiction found."""
    for trajectory_id, trajectory in state.trajectories.items():
        _require(trajectory_id == trajectory.trajectory_id, f"{trajectory_id} is filed under another id")
        _check_place(state, trajectory)
    for worker in state.workers.values():
        _check_worker(state, worker)
    for batch in state.batches.values():
        _check_batch(state, batch)
    _check_whole(state)


def _require(holds: bool, sentence: str) -> None:
    if not holds:
        raise InvariantViolation(sentence)


def _check_place(state: ControlState, trajectory: TrajectoryState) -> None:
    """Exactly one place: a slot, one queue, the unplaced pool, or outside (tools, between, cancelled)."""
    name = trajectory.trajectory_id
    home = None if trajectory.worker_id is None else state.workers.get(trajectory.worker_id)
    _require(trajectory.phase is not TrajectoryPhase.FINISHED, f"{name} is finished but still remembered")
    _require(
        trajectory.worker_id is None or home is not None,
        f"{name} lives on {trajectory.worker_id}, which does not exist",
    )
    _require(home is None or name in home.residents, f"{name} is no resident of its home")
    waits = trajectory.phase is TrajectoryPhase.QUEUED and trajectory.cancel_reason is None
    queued_at = [worker.worker_id for worker in state.workers.values() if name in worker.queue]
    expected = [home.worker_id] if waits and home is not None else []
    _require(queued_at == expected, f"{name} ({trajectory.phase}) waits at {queued_at}, expected {expected}")
    _require(
        (name in state.unplaced) == (waits and home is None),
        f"{name} ({trajectory.phase}, home {trajectory.worker_id}) and the unplaced pool disagree",
    )
    if trajectory.phase is TrajectoryPhase.GENERATING:
        _require(home is not None, f"{name} generates nowhere")
    elif home is not None:
        _require(
            home.phase is WorkerPhase.READY, f"{name} is idle on {home.worker_id}, which is {home.phase}"
        )


def _check_worker(state: ControlState, worker: WorkerState) -> None:
    """Counters equal the sets, slots are never exceeded, and no slot idles while somebody waits."""
    name = worker.worker_id
    residents = [t for t in state.trajectories.values() if t.worker_id == name]
    _require(
        {t.trajectory_id for t in residents} == set(worker.residents),
        f"{name} does not know its residents",
    )
    running = sum(t.phase is TrajectoryPhase.GENERATING for t in residents)
    _require(worker.running == running, f"{name} counts {worker.running} running, but {running} generate")
    _require(
        worker.running <= worker.slots + worker.excess,
        f"{name} runs {worker.running} in {worker.slots} slots",
    )
    waiting = sum(t.phase is TrajectoryPhase.QUEUED and t.cancel_reason is None for t in residents)
    _require(worker.waiting == waiting, f"{name} counts {worker.waiting} waiting, but {waiting} wait")
    _require(worker.phase is not WorkerPhase.STOPPED, f"{name} is stopped but still remembered")
    _require(not worker.stop_ordered or running == 0, f"{name} was ordered to stop while {running} run")
    if worker.phase is WorkerPhase.READY and not state.paused:
        idle = worker.running < worker.slots and worker.waiting > 0
        _require(not idle, f"{name} has a free slot while {worker.waiting} wait for one")
    if worker.phase is WorkerPhase.DRAINING and running == 0:
        _require(worker.stop_ordered, f"{name} is drained but was not ordered to stop")


def _check_batch(state: ControlState, batch: BatchState) -> None:
    """A batch is remembered exactly as long as it has open trajectories, and counts them right."""
    name = batch.batch_id
    _require(bool(batch.open), f"batch {name} has nothing open but is still remembered")
    members = {t.trajectory_id for t in state.trajectories.values() if t.batch_id == name}
    _require(members == set(batch.open), f"batch {name} does not know its open trajectories")
    recount = Counter(t.phase for t in batch.open.values())
    for phase in TrajectoryPhase:
        if phase is not TrajectoryPhase.FINISHED:
            _require(
                batch.phases[phase] == recount[phase], f"batch {name} miscounts its {phase} trajectories"
            )


def _check_whole(state: ControlState) -> None:
    """What concerns no single trajectory, worker or batch."""
    for trajectory in state.trajectories.values():
        _require(trajectory.batch_id in state.batches, f"{trajectory.trajectory_id} belongs to no batch")
    strangers = [name for name in state.unplaced if name not in state.trajectories]
    _require(not strangers, f"the unplaced pool holds {strangers}, which are unknown")
    _require(
        not (state.unplaced and state.ready), f"{len(state.unplaced)} are unplaced though a worker is ready"
    )
    ready = sorted(w.worker_id for w in state.workers.values() if w.phase is WorkerPhase.READY)
    _require([w.worker_id for w in state.ready] == ready, "the list of ready workers is out of date")
    _require(
        not state.paused or state.dispatched_total == state.dispatched_at_pause,
        f"{state.dispatched_total - state.dispatched_at_pause} generations started while dispatch was paused",
    )
