"""Real engine processes that can be told to go wrong: killed, stopped, slowed down, or misunderstood."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from chaos_engine import garbage
from schedule import Fault

from heddle.agent.ports import EngineCapabilities, Generation, GenerationRequest, TokenChunk
from heddle.coordinator.assembly import EngineKit
from heddle.engines.basic import BasicEngine
from heddle.engines.embedded.adapter import EmbeddedEngine
from heddle.engines.embedded.launcher import EmbeddedLauncher, EmbeddedWorker
from heddle.errors import EngineError, EngineRejected
from heddle.types import CachedPrefix, EngineLoad, WorkerSpec

NAPS, NAP_S = 6, 0.25
"""What a slow process does: so often it stands still for so long, and runs as long in between."""

IDLE_WITHIN_S = 20.0
"""For a server to notice that its last request was aborted, and to restart one that was stopped."""


@dataclass(slots=True)
class MisunderstoodEngine(BasicEngine):
    """A real engine whose next answers may be garbage, or refusals."""

    real: EmbeddedEngine
    faults_to_come: deque[Fault]
    capabilities: EngineCapabilities = field(default=EmbeddedEngine.capabilities)

    async def generate(
        self, request: GenerationRequest, on_tokens: Callable[[TokenChunk], None]
    ) -> Generation:
        match self.faults_to_come.popleft() if self.faults_to_come else None:
            case Fault.REJECT:
                raise EngineRejected("the engine refuses this request")
            case Fault.GARBAGE:
                return await self.real.generate(request, lambda chunk: on_tokens(garbage(chunk)))
            case _:
                return await self.real.generate(request, on_tokens)

    async def abort(self, request_id: str) -> None:
        await self.real.abort(request_id)

    async def warm_prefix(self, token_ids: Sequence[int], session_id: str | None = None) -> CachedPrefix:
        return await self.real.warm_prefix(token_ids, session_id)

    async def load(self) -> EngineLoad:
        return await self.real.load()

    async def health(self) -> None:
        await self.real.health()

    async def close(self) -> None:
        await self.real.close()


@dataclass(slots=True)
class ProcessWorker:
    """Implements ``RunningWorker`` around a real one."""

    real: EmbeddedWorker
    engine: MisunderstoodEngine
    slots: int | None = None

    @property
    def url(self) -> str | None:
        return self.real.url

    @property
    def pid(self) -> int | None:
        return self.real.pid

    @property
    def kv_capacity_tokens(self) -> int | None:
        return self.real.kv_capacity_tokens

    @property
    def prefix_capacity_tokens(self) -> int | None:
        return self.real.prefix_capacity_tokens

    async def wait(self) -> str:
        return await self.real.wait()

    async def stop(self) -> None:
        await self.real.stop()

    @property
    def alive(self) -> bool:
        return self.real.process.returncode is None

    def signal(self, number: signal.Signals) -> None:
        """To a process that has not been reaped: never to another one of the same id."""
        if self.alive:
            with suppress(ProcessLookupError):
                self.real.process.send_signal(number)

    def slow_down(self, naps: int = NAPS) -> None:
        self.signal(signal.SIGSTOP)
        asyncio.get_running_loop().call_later(NAP_S, self._wake, naps - 1)

    def _wake(self, naps: int) -> None:
        self.signal(signal.SIGCONT)
        if naps and self.alive:
            asyncio.get_running_loop().call_later(NAP_S, self.slow_down, naps)


@dataclass(slots=True)
class ProcessPlant:
    """Implements ``Plant`` and ``EngineLauncher``."""

    original: EngineKit
    launcher: EmbeddedLauncher
    answers_to_come: deque[Fault] = field(default_factory=deque)
    launched: list[ProcessWorker] = field(default_factory=list)

    @property
    def kit(self) -> EngineKit:
        return replace(self.original, launcher=self)

    async def launch(self, spec: WorkerSpec, log_path: Path) -> ProcessWorker:
        real = await self.launcher.launch(spec, log_path)
        worker = ProcessWorker(real, MisunderstoodEngine(real.engine, self.answers_to_come))
        self.launched.append(worker)
        return worker

    def strike(self, fault: Fault, target: int) -> None:
        alive = [worker for worker in self.launched if worker.alive]
        if fault in (Fault.GARBAGE, Fault.REJECT):
            self.answers_to_come.append(fault)
        elif alive:
            worker = alive[target % len(alive)]
            match fault:
                case Fault.CRASH_WORKER:
                    worker.signal(signal.SIGKILL)
                case Fault.HANG:
                    worker.signal(signal.SIGSTOP)
                case _:
                    worker.slow_down()

    async def loads(self) -> list[EngineLoad]:
        """Of the processes that answer, once they are idle or have had time to be."""
        give_up_at = time.monotonic() + IDLE_WITHIN_S
        while True:
            loads = [load for worker in self.launched if worker.alive for load in await _load(worker)]
            if all(load.running == load.waiting == 0 for load in loads) or time.monotonic() > give_up_at:
                return loads
            await asyncio.sleep(0.1)

    def left(self) -> list[str]:
        return [f"process {worker.pid}" for worker in self.launched if worker.alive]


async def _load(worker: ProcessWorker) -> list[EngineLoad]:
    try:
        return [await worker.engine.load()]
    except EngineError:  # stopped or dying: its supervisor replaces it
        return []
