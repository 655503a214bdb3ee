"""Where the two halves meet: facts into the control plane, its commands out to those who act.

``post`` is synchronous: an event is handled, logged, and its commands delivered before it returns, so no
two decisions ever interleave. Delivering never blocks: a grant goes into a mailbox, a cancellation
reschedules a timeout, a worker order starts or wakes a task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, assert_never

from heddle.agent.link import Ending, Grant
from heddle.agent.loop import TrajectoryRun
from heddle.agent.ports import Engine
from heddle.control.commands import (
    Cancel,
    CancelTransfer,
    Command,
    Generate,
    Preempt,
    StartWorker,
    StopWorker,
    Transfer,
)
from heddle.control.events import Event, LearningTurn
from heddle.control.log import encode_entry
from heddle.control.plane import ControlPlane
from heddle.control.state import IgnoreReason
from heddle.turns import Turns
from heddle.types import TrajectoryId, WorkerId, WorkerSpec

GRANTS_PER_TURN = 4
"""Grants that are taken up in one turn of the event loop. An event may give hundreds, and each is followed by
some tenths of a millisecond of work: all at once they would hold up whoever else is ready."""


class WorkerActions(Protocol):
    """Those who carry out orders about workers."""

    def start(self, spec: WorkerSpec) -> None: ...

    def stop(self, worker_id: WorkerId) -> None: ...

    def engine(self, worker_id: WorkerId) -> tuple[Engine, int]:
        """The engine of a ready worker, and its parallel degree."""
        ...

    def observe(self, event: Event) -> None:
        """Something happened, which may tell of a worker's health."""
        ...


class TransferActions(Protocol):
    """Those who carry out orders about transfers, and answer each with an event."""

    def start(self, order: Transfer, run: TrajectoryRun, source: Engine, target: Engine) -> None: ...

    def withdraw(self, trajectory_id: TrajectoryId) -> None: ...


class DecisionLog(Protocol):
    """Remembers lines, without blocking."""

    def append(self, line: bytes) -> None: ...


@dataclass(slots=True)
class _Mailbox:
    run: TrajectoryRun
    grant: Grant | None = None
    waiter: asyncio.Future[None] | None = None


class ControlLoop:
    """Implements ``ControlLink`` for every trajectory."""

    def __init__(
        self,
        plane: ControlPlane,
        log: DecisionLog,
        now: Callable[[], float],
        on_ignored: Callable[[IgnoreReason], None],
    ) -> None:
        self.plane = plane
        self._log = log
        self._now = now
        self._on_ignored = on_ignored
        self._sequence = 0
        self._mailboxes: dict[TrajectoryId, _Mailbox] = {}
        self._turns = Turns(GRANTS_PER_TURN)
        self._workers: WorkerActions | None = None
        self._transfers: TransferActions | None = None
        self._learning: asyncio.Handle | None = None
        self._closed = False

    def attach(self, workers: WorkerActions, transfers: TransferActions) -> None:
        """Name who carries out orders; once, before the first event."""
        self._workers = workers
        self._transfers = transfers

    def enrol(self, trajectory_id: TrajectoryId, run: TrajectoryRun) -> None:
        """Open a mailbox; before the trajectory's ``BatchSubmitted`` is posted."""
        self._mailboxes[trajectory_id] = _Mailbox(run)

    def dismiss(self, trajectory_id: TrajectoryId) -> None:
        """Close the mailbox; commands that still arrive for it are dropped."""
        self._mailboxes.pop(trajectory_id, None)

    def uses_its_slot(self, trajectory_id: TrajectoryId) -> bool:
        """Whether it generates, or holds a grant that it has not taken up yet."""
        mailbox = self._mailboxes.get(trajectory_id)
        return mailbox is not None and (mailbox.grant is not None or mailbox.run.generating)

    def post(self, event: Event) -> None:
        now = self._now()
        commands = self.plane.handle(event, now)
        ignored = self.plane.last_ignored
        self._log.append(encode_entry(self._sequence, now, event, commands, ignored))
        self._sequence += 1
        if ignored is not None:
            self._on_ignored(ignored)
        for command in commands:
            self._deliver(command)
        self._actions.observe(event)
        if self.plane.predictor.waiting and self._learning is None and not self._closed:
            self._learning = asyncio.get_running_loop().call_soon(self._learn)

    def close(self) -> None:
        """Leave unlearned what waits; for the end, when nothing is posted any more."""
        self._closed = True
        if self._learning is not None:
            self._learning.cancel()

    def _learn(self) -> None:
        """A little at a time: whoever else is ready gets the event loop in between."""
        self._learning = None
        self.post(LearningTurn())

    async def granted(self, trajectory_id: TrajectoryId) -> Grant:
        mailbox = self._mailboxes[trajectory_id]
        if mailbox.grant is None:
            mailbox.waiter = asyncio.get_running_loop().create_future()
            try:
                await mailbox.waiter
            finally:
                mailbox.waiter = None
        await self._turns.next()
        grant, mailbox.grant = mailbox.grant, None
        assert grant is not None, "a mailbox wakes its trajectory with a grant in it"
        return grant

    def _deliver(self, command: Command) -> None:
        match command:
            case Generate():
                self._deliver_grant(command)
            case Preempt():
                mailbox = self._mailboxes.get(command.trajectory_id)
                if mailbox is not None:
                    mailbox.run.preempt()
            case Cancel():
                mailbox = self._mailboxes.get(command.trajectory_id)
                if mailbox is not None:
                    mailbox.run.cancel(Ending(command.stop_reason, command.detail, stage="queue"))
            case Transfer():
                self._deliver_transfer(command)
            case CancelTransfer():
                self._transfer_actions.withdraw(command.trajectory_id)
            case StartWorker():
                self._actions.start(command.spec)
            case StopWorker():
                self._actions.stop(command.worker_id)
            case _:
                assert_never(command)

    def _deliver_transfer(self, command: Transfer) -> None:
        run = self._mailboxes[command.trajectory_id].run  # open: the control plane withdraws ended ones
        source, _ = self._actions.engine(command.source)
        target, _ = self._actions.engine(command.target)
        self._transfer_actions.start(command, run, source, target)

    def _deliver_grant(self, command: Generate) -> None:
        mailbox = self._mailboxes.get(command.trajectory_id)
        if mailbox is None:
            return
        engine, tp_degree = self._actions.engine(command.worker_id)
        mailbox.grant = Grant(command.worker_id, tp_degree, engine, command.priority, command.prediction)
        if mailbox.waiter is not None and not mailbox.waiter.done():
            mailbox.waiter.set_result(None)

    @property
    def _actions(self) -> WorkerActions:
        assert self._workers is not None, "attach() comes first"
        return self._workers

    @property
    def _transfer_actions(self) -> TransferActions:
        assert self._transfers is not None, "attach() comes first"
        return self._transfers
