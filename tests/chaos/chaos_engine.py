"""Fake engines, and tools, that can be told to go wrong once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from schedule import Fault

from heddle.agent.ports import Generation, GenerationRequest, TokenChunk, ToolInvocation
from heddle.engines.fake import FakeEngine, FakeModel, FakeWorker
from heddle.errors import EngineRejected, EngineTimeout, ToolBackendError
from heddle.tools.fake import FakeToolBackend, fake_result
from heddle.tools.ports import BackendResult
from heddle.types import WorkerSpec

ENGINE_FAULTS = frozenset({Fault.HANG, Fault.SLOW, Fault.GARBAGE, Fault.REJECT})


class ChaosEngine(FakeEngine):
    """Takes the next fault of the queue, if there is one, with each generation."""

    def __init__(self, *, slots: int, model: FakeModel, faults_to_come: deque[Fault]) -> None:
        super().__init__(slots=slots, model=model)
        self._to_come = faults_to_come

    async def generate(
        self, request: GenerationRequest, on_tokens: Callable[[TokenChunk], None]
    ) -> Generation:
        match self._to_come.popleft() if self._to_come else None:
            case Fault.REJECT:
                raise EngineRejected("the engine refuses this request")
            case Fault.HANG:
                return await self._hanging(request)
            case Fault.GARBAGE:
                return await super().generate(request, lambda chunk: on_tokens(_garbage(chunk)))
            case Fault.SLOW:
                slow = replace(request, deadline_s=min(request.deadline_s, 0.005))
                return await super().generate(slow, on_tokens)
            case _:
                return await super().generate(request, on_tokens)

    async def _hanging(self, request: GenerationRequest) -> Generation:
        """Until the deadline, a crash, or the end of the patience of whoever waits."""
        try:
            async with asyncio.timeout(request.first_token_deadline_s):
                await self.crashed.wait()
        except TimeoutError as exc:
            raise EngineTimeout("no token came") from exc
        self._raise_if_crashed()
        raise AssertionError("an engine that has crashed says so")


def _garbage(chunk: TokenChunk) -> TokenChunk:
    return replace(chunk, token_ids=[-1] * len(chunk.token_ids))


@dataclass(slots=True)
class ChaosLauncher:
    """Remembers every worker that it launched."""

    model: FakeModel
    engine_faults: deque[Fault] = field(default_factory=deque)
    launched: list[FakeWorker] = field(default_factory=list)

    async def launch(self, spec: WorkerSpec, log_path: Path) -> FakeWorker:
        await asyncio.sleep(0)
        engine = ChaosEngine(slots=spec.slots, model=self.model, faults_to_come=self.engine_faults)
        worker = FakeWorker(engine)
        self.launched.append(worker)
        return worker

    def alive(self) -> list[FakeWorker]:
        """Workers whose engines run."""
        return [worker for worker in self.launched if not worker.engine.crashed.is_set()]


@dataclass(slots=True)
class ChaosTools:
    """Answers calls, and counts those that must not be delivered twice, over every life of a coordinator."""

    faults: deque[Fault] = field(default_factory=deque)
    delivered: list[str] = field(default_factory=list)

    def backends(self) -> dict[str, FakeToolBackend]:
        """Fresh ones, for one life."""
        made = (
            FakeToolBackend(self._answer, name="harmless", remember=False),
            FakeToolBackend(self._answer, name="python", remember=False),
            FakeToolBackend(self._deliver, name="world", remember=False, repeatable=False),
        )
        return {backend.name: backend for backend in made}

    def _deliver(self, call: ToolInvocation) -> BackendResult:
        self.delivered.append(call.key)
        return self._answer(call)

    def _answer(self, call: ToolInvocation) -> BackendResult:
        match self.faults.popleft() if self.faults else None:
            case Fault.TOOL_CRASH:
                raise ToolBackendError("the backend is broken")
            case Fault.TOOL_HANG:
                return fake_result("too late", run_s=3600.0)
            case _:
                return fake_result(f"heard {call.payload.get('number')}", run_s=0.001)
