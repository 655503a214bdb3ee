"""Moves of live trajectories: proposals accepted or refused, transfers started, ended, and given up.

A trajectory moves only while its tools run. By *recomputation* its home changes at once. By *transfer* it
changes when the target has the copy; if the tools return first, or anything else comes in between, the move
is withdrawn and the trajectory goes on where it is. So no trajectory ever waits for a move.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from heddle.control.commands import CancelTransfer, Command, Transfer
from heddle.control.dispatch import Dispatcher
from heddle.control.events import TransferFailed, TransferFinished
from heddle.control.ports import MigrationPlanner, MigrationProposal, MoveMeans
from heddle.control.state import (
    ControlState,
    IgnoreReason,
    TrajectoryState,
    WorkerState,
)
from heddle.control.transfers import Move, MoveOutcome, MoveRefusal
from heddle.planning.transfer_rate import TransferRate
from heddle.types import TrajectoryPhase, WorkerPhase


@dataclass(frozen=True, slots=True)
class MoveRules:
    """What holds whichever planner proposes."""

    transfer_deadline_s: float = 30.0
    """After which a transfer has failed, so that a stuck one does not keep its two workers from others."""


DEFAULT_MOVE_RULES = MoveRules()


class Moves:
    """Every method that ends a move leaves it to its caller to serve the queues of the workers concerned."""

    def __init__(
        self,
        state: ControlState,
        dispatcher: Dispatcher,
        planner: MigrationPlanner,
        rules: MoveRules,
        rate: TransferRate,
    ) -> None:
        """``rate`` learns how fast contexts travel, for planners that ask."""
        self._state = state
        self._dispatcher = dispatcher
        self._planner = planner
        self._rules = rules
        self._rate = rate

    def prepare(self) -> None:
        """A batch was placed or the pool changed."""
        self._planner.prepare(tuple(self._state.trajectories.values()), self._state.ready)

    def forget(self, trajectory: TrajectoryState) -> None:
        """It ended; its move was withdrawn."""
        self._planner.forget(trajectory.trajectory_id)

    def consider(self, trajectory: TrajectoryState, now: float) -> list[Command]:
        """Its tools run: move it if it is bound for another worker or the planner proposes so."""
        for proposal in self._proposals(trajectory, now):
            refusal = self._refusal(proposal)
            if refusal is None:
                self._accept(proposal)
                continue
            self._state.moves_refused[refusal] += 1
            refused = self._state.trajectories.get(proposal.trajectory_id)
            if refused is not None:
                refused.move_refused = refusal
        return self._start(now)

    def withdraw(self, trajectory: TrajectoryState) -> list[Command]:
        """It goes on where it is, or not at all: whatever move was planned for it is off."""
        move = self._state.transfers.withdraw(trajectory.trajectory_id)
        if move is None:
            return []
        self._state.moves[MoveOutcome.WITHDRAWN] += 1
        if move.under_way:
            return [CancelTransfer(trajectory.trajectory_id)]
        self._count(move, -1)
        return []

    def withdraw_from(self, worker: WorkerState) -> list[Command]:
        """Nothing leaves this worker any more and nothing comes."""
        concerned = [
            self._state.trajectories[move.trajectory_id]
            for move in self._state.transfers.moves()
            if worker.worker_id in move.endpoints and not move.withdrawn
        ]
        return [command for trajectory in concerned for command in self.withdraw(trajectory)]

    def transfer_finished(self, event: TransferFinished, now: float) -> list[Command]:
        """The target has the copy, and becomes the home unless the move was withdrawn."""
        move = self._state.transfers.answered(event.trajectory_id, event.source, event.target)
        if move is None:
            return self._state.ignore(IgnoreReason.NO_TRANSFER)
        self._count(move, -1)
        self._rate.finished(move.context_tokens, _seconds(move, now))
        commands = [] if move.withdrawn else self._arrive(move, now)
        return commands + self._start(now)

    def transfer_failed(self, event: TransferFailed, now: float) -> list[Command]:
        """The trajectory stays where it is."""
        move = self._state.transfers.answered(event.trajectory_id, event.source, event.target)
        if move is None:
            return self._state.ignore(IgnoreReason.NO_TRANSFER)
        self._count(move, -1)
        self._rate.broken_off(move.context_tokens, _seconds(move, now))
        self._state.moves[MoveOutcome.FAILED] += not move.withdrawn
        return self._start(now)

    def _proposals(self, trajectory: TrajectoryState, now: float) -> Iterable[MigrationProposal]:
        """Where the pool was reshaped for it, nobody else is asked."""
        source, target = trajectory.worker_id, trajectory.bound_for
        if target is None or source is None:
            return self._planner.propose((trajectory,), self._state.ready, now)
        urgency = trajectory.predicted_remaining_tokens or 0.0
        means = MoveMeans.RECOMPUTE if self._rate.tokens_per_s() is None else MoveMeans.TRANSFER
        return (MigrationProposal(trajectory.trajectory_id, source, target, means, urgency),)

    def _refusal(self, proposal: MigrationProposal) -> MoveRefusal | None:
        trajectory = self._state.trajectories.get(proposal.trajectory_id)
        target = self._state.workers.get(proposal.target)
        if trajectory is None or trajectory.cancel_reason is not None:
            return MoveRefusal.ENDED
        if trajectory.phase is not TrajectoryPhase.IN_TOOL:
            return MoveRefusal.NOT_IN_TOOL
        if trajectory.trajectory_id in self._state.transfers:
            return MoveRefusal.MOVING
        if trajectory.worker_id != proposal.source:
            return MoveRefusal.NOT_AT_SOURCE
        if proposal.source == proposal.target:
            return MoveRefusal.THERE_ALREADY
        if target is None or target.phase is not WorkerPhase.READY:
            return MoveRefusal.TARGET_NOT_READY
        if not self._state.has_room(target, trajectory):
            return MoveRefusal.NO_MEMORY
        return None

    def _accept(self, proposal: MigrationProposal) -> None:
        trajectory = self._state.trajectories[proposal.trajectory_id]
        trajectory.move_refused = None
        if proposal.means is MoveMeans.RECOMPUTE:
            self._dispatcher.move_home(trajectory, self._state.workers[proposal.target])
            trajectory.moves += 1
            self._state.moves[MoveOutcome.MOVED] += 1
            return
        move = Move(
            proposal.trajectory_id,
            proposal.source,
            proposal.target,
            trajectory.context_tokens,
            proposal.urgency,
        )
        self._state.transfers.add(move)
        self._count(move, 1)

    def _count(self, move: Move, by: int) -> None:
        """A worker that has gone meanwhile counts no more."""
        for name in move.endpoints:
            worker = self._state.workers.get(name)
            if worker is not None:
                worker.transfers += by

    def _start(self, now: float) -> list[Command]:
        return [
            Transfer(
                move.trajectory_id,
                move.source,
                move.target,
                move.context_tokens,
                self._rules.transfer_deadline_s,
            )
            for move in self._state.transfers.start(now)
        ]

    def _arrive(self, move: Move, now: float) -> list[Command]:
        trajectory = self._state.trajectories[move.trajectory_id]
        source, target = (self._state.workers[name] for name in move.endpoints)
        self._dispatcher.move_home(trajectory, target, warm=True)
        trajectory.moves += 1
        self._dispatcher.guard.relieve(target)
        self._state.moves[MoveOutcome.MOVED] += 1
        return self._dispatcher.serve(source, now) + self._dispatcher.serve(target, now)


def _seconds(move: Move, now: float) -> float:
    """Since it was ordered."""
    return 0.0 if move.started_at is None else now - move.started_at
