"""What a world's engines and tools are, and fakes of both that can be told to go wrong once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from crash_child import CONTEXT_TOKENS, TOKENIZER, speak
from schedule import Fault

from heddle.agent.ports import Generation, GenerationRequest, TokenChunk, ToolInvocation
from heddle.coordinator.assembly import EngineKit
from heddle.engines.fake import FakeEngine, FakeModel, FakeWorker
from heddle.errors import EngineRejected, EngineTimeout, ToolBackendError
from heddle.text.byte_tokenizer import TURN_END
from heddle.tools.fake import FakeToolBackend, fake_result
from heddle.tools.ports import BackendResult
from heddle.types import EngineLoad, WorkerSpec

PLANT_FAULTS = frozenset({Fault.CRASH_WORKER, Fault.HANG, Fault.SLOW, Fault.GARBAGE, Fault.REJECT})


class Plant(Protocol):
    """The engines of a world: how they come about, what befalls them, and what is left of them."""

    @property
    def kit(self) -> EngineKit: ...

    def strike(self, fault: Fault, target: int) -> None:
        """One of ``PLANT_FAULTS``, at once or with the next generation."""
        ...

    async def loads(self) -> list[EngineLoad]:
        """What those that answer have to do, when everything is over."""
        ...

    def left(self) -> list[str]:
        """Those that still run, or were never stopped."""
        ...


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
                return await super().generate(request, lambda chunk: on_tokens(garbage(chunk)))
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


def garbage(chunk: TokenChunk) -> TokenChunk:
    """As many ids that no vocabulary has."""
    return replace(chunk, token_ids=[-1] * len(chunk.token_ids))


MODEL = FakeModel(
    speak, end_of_turn_id=TURN_END, token_delay_s=0.0002, chunk_tokens=32, context_tokens=CONTEXT_TOKENS
)


@dataclass(slots=True)
class FakePlant:
    """Implements ``Plant`` and ``EngineLauncher``; remembers every worker that it launched."""

    engine_faults: deque[Fault] = field(default_factory=deque)
    launched: list[FakeWorker] = field(default_factory=list)

    @property
    def kit(self) -> EngineKit:
        return EngineKit(self, TOKENIZER, FakeEngine.capabilities, "chaos")

    async def launch(self, spec: WorkerSpec, log_path: Path) -> FakeWorker:
        await asyncio.sleep(0)
        engine = ChaosEngine(slots=spec.slots, model=MODEL, faults_to_come=self.engine_faults)
        worker = FakeWorker(engine)
        self.launched.append(worker)
        return worker

    def strike(self, fault: Fault, target: int) -> None:
        if fault is not Fault.CRASH_WORKER:
            self.engine_faults.append(fault)
        elif alive := self._alive():
            alive[target % len(alive)].engine.crash("chaos")

    async def loads(self) -> list[EngineLoad]:
        return [await worker.engine.load() for worker in self._alive()]

    def left(self) -> list[str]:
        return [f"worker {n}" for n, worker in enumerate(self.launched) if not worker.stopped]

    def _alive(self) -> list[FakeWorker]:
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
