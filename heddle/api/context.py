"""What all handlers share: the service, the limits, and who waits for what at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import structlog
from pydantic import SecretStr

from heddle.api.idle import IdleConnections
from heddle.api.service import RolloutService
from heddle.metrics import Metrics
from heddle.turns import Turns

_log = structlog.get_logger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ApiTiming:
    """Every wait of the REST surface, in seconds."""

    body_idle_s: float = 30.0
    """Longest gap between two pieces of a request body."""
    body_total_s: float = 300.0
    """Longest time for a whole request body."""
    write_s: float = 30.0
    """Longest time in which a client takes nothing of what it is sent; then it is dropped."""
    max_wait_s: float = 60.0
    """Cap on ``wait`` of a long poll: most proxies close a silent connection after a minute."""
    heartbeat_s: float = 15.0
    """Silence on an event stream after which a comment is sent."""
    ready_s: float = 5.0
    """Longest time that the service may take to say whether it is ready."""
    idle_s: float = 75.0
    """Longest time for which a connection is kept on which no request is handled. A head that trickles in is
    none yet."""
    stop_s: float = 5.0
    """Longest time that a stopping server waits for running requests."""


DEFAULT_TIMING = ApiTiming()


class Mutations:
    """Runs what changes state to its end, even where the client hangs up in the middle.

    Owns the tasks: ``finish`` waits for them, for a bounded time, when the server stops.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Await ``work``; cancelling the caller does not cancel it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_report_unheard)
            raise

    async def finish(self, timeout_s: float) -> None:
        """Wait for what still runs, then cancel it."""
        pending = set(self._tasks)
        if not pending:
            return
        _, late = await asyncio.wait(pending, timeout=timeout_s)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)


def _report_unheard(task: asyncio.Task[Any]) -> None:
    """Its caller is gone: without this line nobody would ever know that it failed."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.warning("http.mutation.failed", exc_info=error)


@dataclass(frozen=True, slots=True)
class ApiContext:
    """One per application."""

    service: RolloutService
    metrics: Metrics
    max_body_bytes: int
    token: SecretStr | None = None
    timing: ApiTiming = DEFAULT_TIMING
    mutations: Mutations = field(default_factory=Mutations)
    connections: IdleConnections = field(init=False)
    turns: Turns = field(default_factory=Turns)
    """For bodies that are parsed on the event loop."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server stops: long polls answer at once, event streams end."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "connections", IdleConnections(self.timing.idle_s))

    async def unless_stopping(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Await ``work``, but give it up (cancelled, and None) as soon as the server stops."""
        task = asyncio.create_task(work)
        stop = asyncio.create_task(self.stopping.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            task.cancel()
            stop.cancel()
            await asyncio.gather(task, stop, return_exceptions=True)
