"""Read-only views of the control state, for people and dashboards. None of them changes a decision."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from heddle.control.shape import ReshapeOutcome
from heddle.control.state import (
    ControlState,
    IgnoreReason,
    TrajectoryState,
    WorkerState,
)
from heddle.control.transfers import MoveOutcome, MoveRefusal
from heddle.errors import NotFound
from heddle.types import BatchId, StopReason, TrajectoryId, TrajectoryPhase, WorkerId, WorkerPhase


@dataclass(frozen=True, slots=True)
class ControlExplanation:
    """Where an open trajectory stands, and what it waits for."""

    trajectory_id: TrajectoryId
    phase: TrajectoryPhase
    worker_id: WorkerId | None
    since_s: float
    """Seconds in this phase."""
    reason: str
    """One sentence."""
    queue_position: int | None
    """0 is next; ``None`` where it does not queue at a worker."""


@dataclass(frozen=True, slots=True)
class ControlGauges:
    """The control plane in numbers: what is now, and totals since it was made."""

    trajectories: Mapping[TrajectoryPhase, int]
    """Open ones."""
    workers: Mapping[WorkerPhase, int]
    unplaced: int
    batches: int
    paused: bool
    events_total: int
    dispatched_total: int
    finished_total: Mapping[StopReason, int]
    ignored_total: Mapping[IgnoreReason, int]
    transfers_waiting: int
    transfers_under_way: int
    moves_total: Mapping[MoveOutcome, int]
    moves_refused_total: Mapping[MoveRefusal, int]
    reshapes_total: Mapping[ReshapeOutcome, int]


@dataclass(frozen=True, slots=True)
class WaitingGroup:
    """Open trajectories of one batch that stand at the same place."""

    phase: TrajectoryPhase
    worker_id: WorkerId | None
    trajectories: int
    longest_s: float
    """How long the one that came first is there."""
    first: ControlExplanation
    """What that one waits for."""


def explain_batch(state: ControlState, batch_id: BatchId, now: float) -> list[WaitingGroup]:
    """Whom a batch waits for, the longest wait first; empty where it is not open. O(its open ones)."""
    batch = state.batches.get(batch_id)
    if batch is None:
        return []
    members: dict[tuple[object, ...], list[TrajectoryState]] = {}
    for trajectory in batch.open.values():
        ordered_to_end = trajectory.cancel_reason is not None
        place = (trajectory.phase, trajectory.worker_id, trajectory.held_back, ordered_to_end)
        members.setdefault(place, []).append(trajectory)
    groups = [_group(state, same, now) for same in members.values()]
    return sorted(groups, key=lambda group: -group.longest_s)


def _group(state: ControlState, members: list[TrajectoryState], now: float) -> WaitingGroup:
    first = min(members, key=lambda trajectory: trajectory.phase_since)
    found = explain(state, first.trajectory_id, now)
    return WaitingGroup(found.phase, found.worker_id, len(members), found.since_s, found)


def explain(state: ControlState, trajectory_id: TrajectoryId, now: float) -> ControlExplanation:
    """Raises ``NotFound`` for a trajectory that is not open. O(length of its queue)."""
    trajectory = state.trajectories.get(trajectory_id)
    if trajectory is None:
        raise NotFound(f"no open trajectory {trajectory_id}")
    reason, position = _reason(state, trajectory)
    return ControlExplanation(
        trajectory_id=trajectory_id,
        phase=trajectory.phase,
        worker_id=trajectory.worker_id,
        since_s=max(0.0, now - trajectory.phase_since),
        reason=reason,
        queue_position=position,
    )


def gauges(state: ControlState) -> ControlGauges:
    """Count everything once; O(batches + workers)."""
    phases: Counter[TrajectoryPhase] = Counter()
    for batch in state.batches.values():
        phases.update(batch.phases)
    return ControlGauges(
        trajectories={p: phases[p] for p in TrajectoryPhase if p is not TrajectoryPhase.FINISHED},
        workers=Counter(worker.phase for worker in state.workers.values()),
        unplaced=len(state.unplaced),
        batches=len(state.batches),
        paused=state.paused,
        events_total=state.events_total,
        dispatched_total=state.dispatched_total,
        finished_total=dict(state.finished),
        ignored_total=dict(state.ignored),
        transfers_waiting=state.transfers.waiting,
        transfers_under_way=state.transfers.under_way,
        moves_total=dict(state.moves),
        moves_refused_total=dict(state.moves_refused),
        reshapes_total=dict(state.shape.outcomes),
    )


def _reason(state: ControlState, trajectory: TrajectoryState) -> tuple[str, int | None]:
    if trajectory.cancel_reason is not None:
        return f"it was ordered to end ({trajectory.cancel_reason}) and is winding up", None
    match trajectory.phase:
        case TrajectoryPhase.QUEUED:
            return _waiting_reason(state, trajectory)
        case TrajectoryPhase.GENERATING:
            return _generating_reason(state, trajectory) + _bound(trajectory), None
        case TrajectoryPhase.ENDING:
            return "its run is over; its reward and its record are being made", None
        case TrajectoryPhase.IN_TOOL:
            tools = ", ".join(trajectory.tool_names) or "tools"
            after = "; the memory guard will hold it back after that" if trajectory.held_back else ""
            return f"step {trajectory.steps_done - 1} runs {tools}{after}{_move(state, trajectory)}", None
        case _:
            return f"step {trajectory.steps_done - 1} is generated and is being read for tool calls", None


def _move(state: ControlState, trajectory: TrajectoryState) -> str:
    move = state.transfers.get(trajectory.trajectory_id)
    if move is not None and not move.withdrawn:
        stands = "is being copied" if move.under_way else "is to be copied, in its turn,"
        return f"; its context {stands} to {move.target}"
    if trajectory.move_refused is not None:
        return f"; a move of it was refused: {_REFUSALS[trajectory.move_refused]}{_bound(trajectory)}"
    return _bound(trajectory)


def _bound(trajectory: TrajectoryState) -> str:
    return "" if trajectory.bound_for is None else f"; it goes on at {trajectory.bound_for}, started for it"


_REFUSALS: Mapping[MoveRefusal, str] = {
    MoveRefusal.ENDED: "it was ordered to end",
    MoveRefusal.NOT_IN_TOOL: "no tool of it ran",
    MoveRefusal.MOVING: "an earlier transfer of it was not over",
    MoveRefusal.NOT_AT_SOURCE: "it lived elsewhere",
    MoveRefusal.THERE_ALREADY: "it lived there already",
    MoveRefusal.TARGET_NOT_READY: "the target took no work",
    MoveRefusal.NO_MEMORY: "the target lacked memory for its context",
}


def _generating_reason(state: ControlState, trajectory: TrajectoryState) -> str:
    generates = f"step {trajectory.steps_done} generates on {trajectory.worker_id}"
    if trajectory.worker_id is None:
        return generates
    worker = state.workers[trajectory.worker_id]
    if worker.preempting == trajectory.trajectory_id:
        return f"{generates} and is being preempted"
    return generates


def _waiting_reason(state: ControlState, trajectory: TrajectoryState) -> tuple[str, int | None]:
    if trajectory.worker_id is None:
        return f"no worker is ready ({_describe_workers(state)})", None
    worker = state.workers[trajectory.worker_id]
    if trajectory.held_back:
        return _memory_reason(worker, trajectory), None
    position, behind = worker.queue.position(trajectory.trajectory_id, trajectory.batch_id)
    line = "next in line" if behind is None else f"{position} ahead of it, the last of them {behind}"
    others = worker.queue.others(trajectory.batch_id)
    if others:
        line += f", and {others} of other batches take turns with them"
    if trajectory.preemptions:
        line = f"preempted, {line}"
    if state.paused:
        return f"dispatch is paused; {line} at {worker.worker_id}", position
    saturation = f"{worker.running} of {worker.slots} slots of {worker.worker_id} are taken"
    return f"{saturation}; {line}", position


def _memory_reason(worker: WorkerState, trajectory: TrajectoryState) -> str:
    held = f"{worker.kv_tokens} of {worker.prefix_capacity_tokens} tokens of {worker.worker_id} are held"
    return f"held back by the memory guard until its {trajectory.context_tokens} tokens fit; {held}"


def _describe_workers(state: ControlState) -> str:
    if not state.workers:
        return "there is none"
    return ", ".join(f"{worker.worker_id} is {worker.phase}" for worker in state.workers.values())
