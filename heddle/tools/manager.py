"""The Tool Manager: every tool call of every trajectory goes through ``ToolManager.invoke``.

Owns the permits (how many calls run at once) and the line in front of them. Invariants:

- *fair*: permits go to waiting calls in the order in which these arrived;
- *nothing leaks*: a call that returns, raises or is cancelled at any point has given its permit back, and
  whatever it started has ended before the exception comes out. A backend that does not let itself be ended is
  the exception: it is left behind after ``STRAY_GRACE_S``, and what it says in the end is late: counted, and
  ignored;
- *the split adds up*: ``queue_s + cold_start_s + run_s`` is the time that the call took.

It knows no backend by type and does not look into payloads.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import structlog

from heddle.agent.ports import ToolInvocation, ToolResult
from heddle.engines.uninterrupted import uninterrupted
from heddle.errors import ToolBackendError, ToolRefused
from heddle.tools.ports import BackendResult, ToolBackend
from heddle.types import TrajectoryId

log = structlog.get_logger(__name__)

OVERRUN_GRACE_S = 10.0
"""How long past its deadline a backend may stay before the manager ends the call as an infrastructure
failure. Covers a cold start on a crowded machine and the clearing away of a killed process tree."""

STRAY_GRACE_S = 15.0
"""From cancelling a backend's call to leaving it behind; longer than a sandbox takes to be killed."""

CLOSE_TIMEOUT_S = 5.0
"""Bound on the clearing away at ``close()``, for the calls and then again for the backends."""

BACKEND_ERROR = "backend_error"
CANCELLED = "cancelled"
LATE = "late"


@dataclass(frozen=True, slots=True)
class ToolObservation:
    """One finished call, for metrics. ``outcome`` is a ``ToolOutcome`` value, ``backend_error``,
    ``cancelled``, or ``late``: the backend answered when the call had been given up already."""

    name: str
    backend: str
    trajectory_id: TrajectoryId
    outcome: str
    queue_s: float
    cold_start_s: float
    run_s: float


@dataclass(frozen=True, slots=True)
class ToolGauges:
    """The manager at one instant. ``totals`` counts finished calls by outcome since the start."""

    running: int
    queued: int
    totals: Mapping[str, int]
    strays: int = 0
    """Calls that their backend does not let be ended. Nobody waits for them any more."""


class _Permits:
    """A counting semaphore whose waiters are served in order of arrival and can be turned away."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._closed = False

    @property
    def waiting(self) -> int:
        return len(self._waiters)

    async def acquire(self) -> None:
        """Raises ``ToolRefused`` once closed."""
        if self._closed:
            raise ToolRefused("the tool manager is closed")
        if self._free and not self._waiters:
            self._free -= 1
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            # The permit may have been handed over in the same tick as the cancellation: pass it on.
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.release()
            raise
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def release(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._free += 1

    def close(self) -> None:
        self._closed = True
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_exception(ToolRefused("the tool manager is closed"))


class ToolManager:
    """Runs invocations on named backends, ``concurrency`` at a time."""

    def __init__(
        self,
        backends: Mapping[str, ToolBackend],
        *,
        concurrency: int,
        default_timeout_s: float,
        observe: Callable[[ToolObservation], None] | None = None,
    ) -> None:
        self._backends = dict(backends)
        self._default_timeout_s = default_timeout_s
        self._observe = observe
        self._permits = _Permits(concurrency)
        self._runs: set[asyncio.Task[BackendResult]] = set()
        self._strays: set[asyncio.Task[BackendResult]] = set()
        self._active: Counter[TrajectoryId] = Counter()
        self._totals: Counter[str] = Counter()
        self._closed = False

    def __repr__(self) -> str:
        return f"<ToolManager running={len(self._runs)} queued={self._permits.waiting}>"

    def register(self, backend: ToolBackend) -> None:
        """Add a backend under its own name. Raises ``ToolBackendError`` where the name is taken."""
        if backend.name in self._backends:
            raise ToolBackendError(f"a tool backend named {backend.name!r} is registered already")
        self._backends[backend.name] = backend

    def gauges(self) -> ToolGauges:
        """What runs, what waits, and what there was."""
        return ToolGauges(len(self._runs), self._permits.waiting, dict(self._totals), len(self._strays))

    def active(self, trajectory_id: TrajectoryId) -> int:
        """Calls of this trajectory that wait or run; 0 says that its sandboxes are free."""
        return self._active[trajectory_id]

    def repeatable(self, backend: str) -> bool:
        """Whether calls of this backend may be delivered more than once; true of one that is not there."""
        known = self._backends.get(backend)
        return known is None or known.repeatable

    async def invoke(self, invocation: ToolInvocation) -> ToolResult:
        """Run one call: wait for a permit, run it inside its deadline, tell the observer.

        Raises ``ToolBackendError`` where the infrastructure failed: a backend that raised or overran its
        deadline by far. Raises ``ToolRefused`` where it was not delivered: unknown backend, manager closed.
        """
        backend = self._backends.get(invocation.backend)
        if backend is None:
            known = ", ".join(sorted(self._backends)) or "none"
            raise ToolRefused(f"unknown tool backend {invocation.backend!r} (known: {known})")
        arrived = time.monotonic()
        started: float | None = None
        result: BackendResult | None = None
        outcome = CANCELLED
        self._active[invocation.trajectory_id] += 1
        try:
            await self._permits.acquire()
            started = time.monotonic()
            try:
                result = await self._run(backend, invocation)
            finally:
                self._permits.release()
            outcome = result.outcome.value
            return _tool_result(result, queue_s=started - arrived)
        except ToolBackendError:
            outcome = BACKEND_ERROR
            raise
        finally:
            self._leave(invocation.trajectory_id)
            queue_s = (time.monotonic() if started is None else started) - arrived
            self._record(invocation, outcome, queue_s, result)

    async def _run(self, backend: ToolBackend, invocation: ToolInvocation) -> BackendResult:
        timeout_s = self._default_timeout_s if invocation.timeout_s is None else invocation.timeout_s
        # A task of its own, so that close() can end the run without cancelling whoever waits for it.
        run = asyncio.create_task(backend.invoke(invocation, time.monotonic() + timeout_s))
        self._runs.add(run)
        try:
            await asyncio.wait({run}, timeout=timeout_s + OVERRUN_GRACE_S)
            overran = not run.done()
        finally:
            self._runs.discard(run)
            if not run.done():
                await uninterrupted(self._end(run, invocation))
        if overran:
            raise ToolBackendError(
                f"tool backend {backend.name!r} overran its limit of {timeout_s:g} s and was ended"
            )
        return self._outcome(run, backend)

    def _outcome(self, run: asyncio.Task[BackendResult], backend: ToolBackend) -> BackendResult:
        try:
            return run.result()
        except ToolBackendError:
            raise
        except asyncio.CancelledError:
            if self._closed:
                raise ToolBackendError("the tool manager was closed during the call") from None
            raise ToolBackendError(f"tool backend {backend.name!r} cancelled its own call") from None
        except Exception as exc:  # the boundary: a backend's bugs are not the task's fault
            what = f"{type(exc).__name__}: {exc}"
            raise ToolBackendError(f"tool backend {backend.name!r} failed: {what}") from exc

    async def _end(self, run: asyncio.Task[BackendResult], invocation: ToolInvocation) -> None:
        """Nobody wants its result any more. Returns when it has ended, or does not let itself be ended."""
        run.add_done_callback(partial(self._came_late, invocation))
        run.cancel()
        await asyncio.wait({run}, timeout=STRAY_GRACE_S)
        if not run.done():
            self._strays.add(run)
            log.warning("tool.stray", backend=invocation.backend, key=invocation.key)

    def _came_late(self, invocation: ToolInvocation, run: asyncio.Task[BackendResult]) -> None:
        """Its caller has gone on, perhaps to deliver the call again."""
        self._strays.discard(run)
        if not run.cancelled() and run.exception() is None:
            self._record(invocation, LATE, 0.0, run.result())

    def _leave(self, trajectory_id: TrajectoryId) -> None:
        self._active[trajectory_id] -= 1
        if not self._active[trajectory_id]:
            del self._active[trajectory_id]

    def _record(
        self, invocation: ToolInvocation, outcome: str, queue_s: float, result: BackendResult | None
    ) -> None:
        self._totals[outcome] += 1
        if self._observe is not None:
            self._observe(
                ToolObservation(
                    name=invocation.name,
                    backend=invocation.backend,
                    trajectory_id=invocation.trajectory_id,
                    outcome=outcome,
                    queue_s=queue_s,
                    cold_start_s=0.0 if result is None else result.cold_start_s,
                    run_s=0.0 if result is None else result.run_s,
                )
            )

    async def close(self) -> None:
        """Turn waiting calls away, end running ones, close the backends; all in bounded time."""
        self._closed = True
        self._permits.close()
        runs = list(self._runs)
        for run in runs:
            run.cancel()
        if runs:
            await asyncio.wait(runs, timeout=CLOSE_TIMEOUT_S)
        async with asyncio.TaskGroup() as group:
            for backend in self._backends.values():
                group.create_task(_close_bounded(backend))


async def _close_bounded(backend: ToolBackend) -> None:
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await backend.close()
    except TimeoutError as exc:
        raise ToolBackendError(f"tool backend {backend.name!r} did not close in time") from exc


def _tool_result(result: BackendResult, *, queue_s: float) -> ToolResult:
    return ToolResult(
        output=result.output,
        ok=result.ok,
        outcome=result.outcome.value,
        queue_s=queue_s,
        cold_start_s=result.cold_start_s,
        run_s=result.run_s,
        extra=result.extra,
    )
