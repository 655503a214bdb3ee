"""Carries out transfers: brings a trajectory's prefix to another worker while its tools run.

The control plane orders, one at a time for each worker, and is answered exactly once: when the copy is made
or has failed, and at the deadline at the latest, also if an engine does not let go by then. What an engine
does after that is still owned here and ends with the desk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from heddle.agent.ports import Engine
from heddle.control.commands import Transfer
from heddle.control.events import Event, TransferFailed, TransferFinished
from heddle.errors import EngineError, UnsupportedByEngine
from heddle.records import MoveRecord
from heddle.types import PrefixTransfer, TrajectoryId

WITHDRAWN = "withdrawn"
"""Reason of a failed transfer that the control plane itself called off."""


class MovingRun(Protocol):
    """A trajectory, as far as its moves are concerned."""

    @property
    def steps_done(self) -> int: ...

    def visit(self, engine: Engine) -> str:
        """It is about to have a prefix there; returns the name under which the engine may keep it."""
        ...

    def context_ids(self) -> list[int]:
        """Everything that it was prompted with, generated and observed."""
        ...

    def note_move(self, step_index: int, move: MoveRecord) -> None:
        """Remember what became of a move that was tried during the tools of this step."""
        ...


@dataclass(slots=True)
class _Copying:
    order: Transfer
    run: MovingRun
    step_index: int
    """Whose tools run."""
    began: float
    work: asyncio.Task[PrefixTransfer | str]
    withdrawn: bool = False


class TransferDesk:
    """``start`` and ``withdraw`` do not block. ``close`` ends what is under way, unanswered."""

    def __init__(
        self,
        *,
        post: Callable[[Event], None],
        observe: Callable[[MoveRecord], None],
        now: Callable[[], float],
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._post = post
        self._observe = observe
        self._now = now
        self._tasks = tasks
        self._copying: dict[TrajectoryId, _Copying] = {}
        self._owned: set[asyncio.Task[PrefixTransfer | str] | asyncio.Task[None]] = set()

    def start(self, order: Transfer, run: MovingRun, source: Engine, target: Engine) -> None:
        """Begin a transfer; its trajectory has no other."""
        copy = _copy(source, target, run.context_ids(), run.visit(target))
        work = self._tasks.create_task(copy, name=f"transfer {order.trajectory_id}")
        copying = _Copying(order, run, run.steps_done - 1, self._now(), work)
        self._copying[order.trajectory_id] = copying
        self._own(work)
        self._own(self._tasks.create_task(self._answer(copying)))

    def withdraw(self, trajectory_id: TrajectoryId) -> None:
        """Break a transfer off; its answer comes when the engines have let go, or at its deadline.

        Its trajectory remembers it now: it may have ended by then.
        """
        copying = self._copying.get(trajectory_id)
        if copying is not None and not copying.withdrawn:
            copying.withdrawn = True
            copying.work.cancel()
            self._note(copying, WITHDRAWN)

    async def close(self) -> None:
        """End everything; nothing is answered any more."""
        owned = list(self._owned)
        for task in owned:
            task.cancel()
        if owned:
            await asyncio.wait(owned)

    def _own(self, task: asyncio.Task[PrefixTransfer | str] | asyncio.Task[None]) -> None:
        self._owned.add(task)
        task.add_done_callback(self._owned.discard)

    def _note(self, copying: _Copying, outcome: PrefixTransfer | str) -> None:
        move = _record(copying, outcome, self._now() - copying.began)
        copying.run.note_move(copying.step_index, move)
        self._observe(move)

    async def _answer(self, copying: _Copying) -> None:
        order = copying.order
        await asyncio.wait({copying.work}, timeout=order.deadline_s)
        outcome = _outcome(copying)
        copying.work.cancel()
        del self._copying[order.trajectory_id]
        if not copying.withdrawn:
            self._note(copying, outcome)
        if isinstance(outcome, PrefixTransfer):
            moved = outcome.moved_tokens
            self._post(TransferFinished(order.trajectory_id, order.source, order.target, moved))
        else:
            self._post(TransferFailed(order.trajectory_id, order.source, order.target, outcome))


async def _copy(source: Engine, target: Engine, ids: Sequence[int], session_id: str) -> PrefixTransfer | str:
    """What was brought, or why nothing was: an engine that fails is an answer, not an error."""
    try:
        if source.capabilities.kv_transfer:
            return await source.transfer(ids, target, session_id)
        if not target.capabilities.prefix_warmup:
            raise UnsupportedByEngine("neither engine can bring a prefix to the other")
        found = await target.warm_prefix(ids, session_id)
    except EngineError as exc:
        return str(exc)
    return PrefixTransfer(found.tokens, len(ids) - found.tokens, sources=found.sources)


def _outcome(copying: _Copying) -> PrefixTransfer | str:
    if not copying.work.done():
        return f"not done after {copying.order.deadline_s:g} s"
    if copying.work.cancelled():
        return WITHDRAWN
    return copying.work.result()


def _record(copying: _Copying, outcome: PrefixTransfer | str, seconds: float) -> MoveRecord:
    source, target = copying.order.source, copying.order.target
    if copying.withdrawn:
        return MoveRecord(source, target, "withdrawn", seconds)
    if isinstance(outcome, str):
        return MoveRecord(source, target, "failed", seconds, detail=outcome)
    return MoveRecord(
        source,
        target,
        "moved",
        seconds,
        moved_tokens=outcome.moved_tokens,
        computed_tokens=outcome.computed_tokens,
        nbytes=outcome.nbytes,
        sources=outcome.sources,
    )
