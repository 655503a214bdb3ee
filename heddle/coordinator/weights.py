"""New weights while a pool runs: all workers get them, or none serves them.

Dispatch stops, every engine pauses, every engine loads. Where all have succeeded the version is committed
and they go on. Where one has not, those that have are taken back to the weights before, and a worker whose
weights nobody knows any more is started anew. A worker that comes up later serves only after it has loaded
what was committed last.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import orjson
import structlog

from heddle.agent.ports import Engine
from heddle.api.schemas import WeightsRequest
from heddle.api.service import WeightsStatus
from heddle.control.events import DispatchPaused, DispatchResumed, WeightsCommitted
from heddle.coordinator.broadcast import Broadcaster, Pulse
from heddle.coordinator.control_loop import ControlLoop
from heddle.coordinator.weights_file import Weights, WeightsFile
from heddle.engines.uninterrupted import uninterrupted
from heddle.errors import (
    Conflict,
    EngineError,
    EngineRejected,
    EngineUnavailable,
    StoreError,
    UnsupportedByEngine,
)
from heddle.types import Json, PauseMode, WeightCall, WorkerId

_log = structlog.get_logger(__name__)

Engines = Mapping[WorkerId, Engine]
Failures = Mapping[WorkerId, EngineError]
Step = Callable[[WorkerId, Engine], Coroutine[Any, Any, None]]


class WeightPool(Protocol):
    """The workers, as far as weights go."""

    def engines(self) -> Engines:
        """Of every worker that runs, also of those that may not serve yet."""
        ...

    def restart(self, worker_id: WorkerId, reason: str) -> None:
        """End a worker and start it anew; what runs there goes back to the queue."""
        ...


class WeightKeeper:
    """Knows which weights serve, and is the only one who changes them."""

    def __init__(
        self,
        pool: WeightPool,
        control: ControlLoop,
        broadcaster: Broadcaster,
        file: WeightsFile,
        *,
        base_path: str | None,
    ) -> None:
        """``base_path`` is where the weights lie that workers start with, if engines can read them there.

        Raises ``StoreError`` where what was saved cannot be read.
        """
        self._pool = pool
        self._control = control
        self._broadcaster = broadcaster
        self._file = file
        self._base_path = base_path
        self._committed = file.load()
        self._updating = asyncio.Lock()
        self._changed = Pulse()

    @property
    def current(self) -> Weights:
        """What was committed last; version 0 are the weights that workers start with."""
        return self._committed or Weights(0, self._base_path)

    @property
    def updating(self) -> bool:
        """Whether workers are being given new weights just now."""
        return self._updating.locked()

    def announce(self) -> None:
        """Tell the control plane whether workers that start from now on can load what serves.

        Not where a trainer pushed it. The weights that workers start with they have anyway: nothing is said.
        """
        if self.current.version:
            self._control.post(WeightsCommitted(self.current.path is not None))

    # ------------------------------------------------------------------------- workers that come up

    def admits(self, engine: Engine) -> bool:
        """Whether a worker that came up may serve at once. The first one of all says what serves."""
        if not engine.capabilities.weight_update:
            return True
        if self._committed is None and not self.updating and engine.weight_version:
            self._committed = Weights(engine.weight_version, self._base_path)
        return not self.updating and engine.weight_version == self.current.version

    async def prepare(self, engine: Engine) -> None:
        """Return when the engine has what serves: it loads it, or waits until it is pushed.

        Raises ``EngineError`` where it cannot load it.
        """
        while True:
            async with self._updating:
                current, seen = self.current, self._changed.fired
                if engine.weight_version == current.version:
                    return
                if current.path is not None:
                    await engine.update_weights(current.path, current.version)
                    return
            await self._changed.wait(since=seen)

    # ------------------------------------------------------------------------------------ an update

    async def update(self, request: WeightsRequest) -> WeightsStatus:
        """Give all workers new weights; the same request again changes nothing.

        Raises ``Conflict`` for a version that is not newer or a pool without workers,
        ``UnsupportedByEngine``, ``EngineUnavailable`` where a worker did not take them, and ``StoreError``:
        then all serve what they served before.
        """
        wanted = Weights(request.version, request.path, _digest(request))
        async with self._updating:
            current = self.current
            if wanted == current:
                return WeightsStatus("unchanged", current.version, [])
            if wanted.version <= current.version:
                raise Conflict(f"version {current.version} serves already, so {wanted.version} is not new")
            engines = self._pool.engines()
            if not engines:
                raise Conflict("no worker runs that could take new weights")
            for worker_id, engine in engines.items():
                if not engine.capabilities.weight_update:
                    raise UnsupportedByEngine(f"{worker_id} cannot load new weights while it runs")
            with self._dispatch_stopped():
                await self._exchange(engines, request, wanted)
        self._changed.fire()
        return WeightsStatus("updated", wanted.version, sorted(engines))

    async def _exchange(self, engines: Engines, request: WeightsRequest, wanted: Weights) -> None:
        """Raises ``EngineUnavailable`` and ``StoreError``, each after a rollback."""
        mode = PauseMode(request.pause)
        lost: set[WorkerId] = set()
        try:
            failures = await _on_all(engines, lambda _, engine: engine.pause(mode))
            if not failures:
                failures = await _load(engines, request)
                if failures:
                    lost = await self._roll_back(engines, failures, pushed=request.path is None)
            if failures:
                raise self._failed(wanted, failures)
            try:
                await asyncio.to_thread(self._file.save, wanted)
            except StoreError:  # what is not remembered must not serve: a restart would not know of it
                lost = await self._roll_back(engines, {}, pushed=request.path is None)
                raise
            self._committed = wanted
            self.announce()
            self._broadcaster.publish("weights.updated", {"version": wanted.version})
            _log.info("weights.updated", version=wanted.version, workers=sorted(engines))
            if mode is not PauseMode.IN_PLACE:
                await _flush(engines)
        finally:
            await uninterrupted(self._go_on(engines, lost))

    async def _roll_back(self, engines: Engines, failures: Failures, *, pushed: bool) -> set[WorkerId]:
        """Load the weights before wherever others may be; returns the workers that did not take them."""
        before = self.current
        kept = {w for w, error in failures.items() if isinstance(error, EngineRejected) and not pushed}
        changed = {worker_id: engine for worker_id, engine in engines.items() if worker_id not in kept}
        if pushed:
            await _on_all(changed, lambda _, engine: engine.end_push(before.version))
        if before.path is None:
            return set(changed)
        path = before.path
        return set(await _on_all(changed, lambda _, engine: engine.update_weights(path, before.version)))

    def _failed(self, wanted: Weights, failures: Failures) -> EngineUnavailable:
        reasons: dict[str, Json] = {str(worker_id): str(error) for worker_id, error in failures.items()}
        version = self.current.version
        self._broadcaster.publish(
            "weights.refused", {"version": wanted.version, "serves": version, "reasons": reasons}
        )
        told = "; ".join(f"{worker_id}: {reason}" for worker_id, reason in reasons.items())
        return EngineUnavailable(f"version {wanted.version} was not loaded, {version} serves on; {told}")

    async def _go_on(self, engines: Engines, lost: set[WorkerId]) -> None:
        """End the pause; a worker whose weights nobody knows must not, and is started anew."""
        sound = {worker_id: engine for worker_id, engine in engines.items() if worker_id not in lost}
        stuck = await _on_all(sound, lambda _, engine: engine.resume())
        for worker_id in sorted(lost):
            self._pool.restart(worker_id, "its weights are unknown after an update that failed")
        for worker_id, error in stuck.items():
            self._pool.restart(worker_id, f"it did not go on after an update of the weights: {error}")

    @contextmanager
    def _dispatch_stopped(self) -> Iterator[None]:
        """Grant nothing meanwhile; an operator's own pause stays."""
        if self._control.plane.state.paused:
            yield
            return
        self._control.post(DispatchPaused())
        try:
            yield
        finally:
            self._control.post(DispatchResumed())


async def _load(engines: Engines, request: WeightsRequest) -> Failures:
    """From disk, or by the trainer's calls in their order, each to all engines before the next."""
    path, version = request.path, request.version
    if path is not None:
        return await _on_all(engines, lambda _, engine: engine.update_weights(path, version))
    failures = await _on_all(engines, lambda _, engine: engine.begin_push())
    for call in request.calls:
        if failures:
            return failures
        own = {worker_id: {**call.body, **call.per_worker.get(worker_id, {})} for worker_id in engines}
        endpoint = call.endpoint
        pushes = {worker_id: WeightCall(endpoint, body) for worker_id, body in own.items()}
        failures = await _on_all(engines, _push(pushes))
    return failures or await _on_all(engines, lambda _, engine: engine.end_push(version))


def _push(calls: Mapping[WorkerId, WeightCall]) -> Step:
    return lambda worker_id, engine: engine.push_weights(calls[worker_id])


async def _flush(engines: Engines) -> None:
    """Prefixes of older weights are never found again, so memory is all that a failure costs."""
    for worker_id, error in (await _on_all(engines, lambda _, engine: engine.flush_cache())).items():
        _log.warning("weights.flush_failed", worker_id=worker_id, reason=str(error))


async def _on_all(engines: Engines, step: Step) -> Failures:
    """Do it everywhere at once; returns what failed where."""

    async def attempt(worker_id: WorkerId, engine: Engine) -> tuple[WorkerId, EngineError | None]:
        try:
            await step(worker_id, engine)
        except EngineError as exc:
            return worker_id, exc
        return worker_id, None

    async with asyncio.TaskGroup() as tasks:
        attempts = [tasks.create_task(attempt(*item)) for item in engines.items()]
    outcomes = [attempt.result() for attempt in attempts]
    return {worker_id: error for worker_id, error in outcomes if error is not None}


def _digest(request: WeightsRequest) -> str:
    """Of where the weights come from, however running generations are treated meanwhile."""
    content = request.model_dump(mode="json", include={"path", "calls"})
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()
