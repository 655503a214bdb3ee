"""Keeps one worker alive: start, watch, report, restart with growing pauses, give up, stop.

Independent of what kind of engine the worker is. The supervisor owns no task beyond its own ``run``,
which its caller owns; whatever way ``run`` ends, the worker's process is gone before it returns.

The listener hears, in this order: any number of (``worker_ready``, ``worker_lost``) pairs, where a
``worker_lost`` may also come alone (the start failed); at the end ``worker_stopped`` if a stop was
requested, or a ``worker_lost`` with ``will_restart=False`` if the worker was given up. Nothing is
reported of a ``run`` that is cancelled.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import structlog

from heddle.agent.ports import Engine
from heddle.engines.uninterrupted import uninterrupted
from heddle.errors import ConfigError, EngineError, HeddleError
from heddle.types import WorkerId, WorkerSpec

T = TypeVar("T")


class RunningWorker(Protocol):
    """A worker that answers. Created by a launcher, stopped by whoever launched it."""

    @property
    def engine(self) -> Engine: ...
    @property
    def url(self) -> str | None: ...
    @property
    def pid(self) -> int | None: ...
    @property
    def slots(self) -> int | None:
        """Generations that it runs at once, where that may be fewer than were asked for."""
        ...

    @property
    def kv_capacity_tokens(self) -> int | None:
        """What may be in its running batch."""
        ...

    @property
    def prefix_capacity_tokens(self) -> int | None:
        """What it can keep of trajectories between two of their steps, whatever runs included."""
        ...

    async def wait(self) -> str:
        """Return when the worker ends by itself, with a sentence that says how."""
        ...

    async def stop(self) -> None:
        """End it and everything that belongs to it, in bounded time; harmless when it is gone."""
        ...


class EngineLauncher(Protocol):
    """Starts workers of one kind."""

    async def launch(self, spec: WorkerSpec, log_path: Path) -> RunningWorker:
        """Start a worker; returns when it is ready to generate.

        Raises ``EngineUnavailable`` where it did not come up, ``ConfigError`` where it never will.
        Leaves nothing behind when it raises or is cancelled.
        """
        ...


class WorkerListener(Protocol):
    """Hears of a worker's life; called on the event loop and must not block."""

    def worker_ready(self, spec: WorkerSpec, worker: RunningWorker) -> None: ...

    def worker_lost(self, worker_id: WorkerId, reason: str, will_restart: bool) -> None: ...

    def worker_stopped(self, worker_id: WorkerId) -> None: ...


@dataclass(frozen=True, slots=True)
class RestartPacing:
    """How long to wait before the next start."""

    first_s: float = 0.5
    longest_s: float = 60.0
    jitter: float = 0.25
    """Share of the pause by which it is varied up and down: workers that died together do not all come
    back in the same instant."""
    forgiven_after_s: float = 3600.0
    """Health this long makes earlier failures forgotten."""

    def pause_s(self, failures: int, rng: random.Random) -> float:
        """The pause after the ``failures``-th failure in a row, counted from 1."""
        doubled = self.first_s * 2.0 ** min(failures - 1, 63)
        return min(doubled, self.longest_s) * rng.uniform(1.0 - self.jitter, 1.0 + self.jitter)


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """When a worker that still runs counts as lost. Generous: a busy CPU is slow, not dead."""

    every_s: float = 15.0
    deadline_s: float = 30.0
    failures: int = 3
    """In a row."""


class SupervisedWorker:
    """One worker under supervision. ``run`` once, from the task that is to own it."""

    def __init__(
        self,
        spec: WorkerSpec,
        launcher: EngineLauncher,
        listener: WorkerListener,
        log_dir: Path,
        *,
        max_restarts: int,
        rng: random.Random,
        pacing: RestartPacing = RestartPacing(),
        health: HealthCheck = HealthCheck(),
    ) -> None:
        self.spec = spec
        self.log_path = log_dir / f"{spec.worker_id}.log"
        self._launcher = launcher
        self._listener = listener
        self._max_restarts = max_restarts
        self._rng = rng
        self._pacing = pacing
        self._health = health
        self._stop = asyncio.Event()
        self._renew = asyncio.Event()
        self._renewal_reason = ""
        self._restarts = 0
        self._failures = 0
        self._log = structlog.get_logger().bind(worker_id=spec.worker_id)

    @property
    def restarts(self) -> int:
        """Starts after the first, over the whole life."""
        return self._restarts

    def request_stop(self) -> None:
        """Make ``run`` stop the worker and return; at any time, any number of times."""
        self._stop.set()

    def request_restart(self, reason: str) -> None:
        """Make ``run`` end the present life, if there is one, and begin another."""
        self._renewal_reason = reason
        self._renew.set()

    async def run(self) -> None:
        """Keep the worker alive until a stop is requested or it is given up."""
        while not self._stop.is_set():
            reason, final = await self._live_once()
            if self._stop.is_set():
                break
            self._failures += 1
            will_restart = not final and self._failures <= self._max_restarts
            self._log.warning("worker.lost", reason=reason, failures=self._failures, restart=will_restart)
            self._listener.worker_lost(self.spec.worker_id, reason, will_restart)
            if not will_restart:
                return
            await self._unless_stopped(asyncio.sleep(self._pacing.pause_s(self._failures, self._rng)))
            self._restarts += not self._stop.is_set()
        self._log.info("worker.stopped")
        self._listener.worker_stopped(self.spec.worker_id)

    async def _live_once(self) -> tuple[str, bool]:
        """One life, from launch to the process's end: why it ended, and whether that is final."""
        try:
            worker = await self._launch()
        except ConfigError as exc:
            return str(exc), True
        except HeddleError as exc:
            return f"did not start: {exc}", False
        except Exception as exc:  # a supervisor outlives whatever its launcher raises
            self._log.exception("worker.launch_failed")
            return f"did not start: {type(exc).__name__}: {exc}", False
        if worker is None:
            return "stopped while it started", False
        try:
            return await self._watch(worker), False
        finally:
            await uninterrupted(worker.stop())

    async def _launch(self) -> RunningWorker | None:
        """``None`` where a stop was requested meanwhile."""
        launch = asyncio.ensure_future(self._launcher.launch(self.spec, self.log_path))
        try:
            await self._unless_stopped(_settled(launch))
            launch.cancel()
            await uninterrupted(_settled(launch))
        except asyncio.CancelledError:
            await uninterrupted(_discard(launch))
            raise
        if launch.cancelled():
            return None
        return launch.result()

    async def _watch(self, worker: RunningWorker) -> str:
        """Return when the worker ended, hangs, or is to be stopped."""
        loop = asyncio.get_running_loop()
        ready_at = loop.time()
        self._renew.clear()
        self._log.info("worker.ready", pid=worker.pid, url=worker.url)
        self._listener.worker_ready(self.spec, worker)
        ended = asyncio.ensure_future(worker.wait())
        hung = asyncio.ensure_future(self._until_unhealthy(worker.engine))
        stop = asyncio.ensure_future(self._stop.wait())
        renew = asyncio.ensure_future(self._renew.wait())
        watchers = {ended, hung, stop, renew}
        try:
            await asyncio.wait(watchers, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for watcher in watchers:
                watcher.cancel()
            await uninterrupted(_settled(*watchers))
        if loop.time() - ready_at >= self._pacing.forgiven_after_s:
            self._failures = 0
        if not ended.cancelled():
            return ended.result()
        if not renew.cancelled():
            return self._renewal_reason
        return "stop requested" if hung.cancelled() else hung.result()

    async def _until_unhealthy(self, engine: Engine) -> str:
        failures = 0
        while True:
            await asyncio.sleep(self._health.every_s)
            try:
                async with asyncio.timeout(self._health.deadline_s):
                    await engine.health()
            except (EngineError, TimeoutError) as exc:
                failures += 1
                why = str(exc) or f"no answer within {self._health.deadline_s:g} s"
                if failures >= self._health.failures:
                    return f"unhealthy {failures} times in a row: {why}"
            else:
                failures = 0

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> None:
        """Await ``work``, or a stop request, whichever comes first; ``work`` does not outlast this."""
        task = asyncio.ensure_future(work)
        stop = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            task.cancel()
            stop.cancel()
            await uninterrupted(_settled(task, stop))


async def _discard(launch: asyncio.Future[RunningWorker]) -> None:
    """End a launch; one that came up in the very same moment is stopped."""
    launch.cancel()
    await _settled(launch)
    if not launch.cancelled() and launch.exception() is None:
        await launch.result().stop()


async def _settled(*futures: asyncio.Future[Any]) -> None:
    """Wait until all are done, however they ended."""
    await asyncio.wait(futures)
