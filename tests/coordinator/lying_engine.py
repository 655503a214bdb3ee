"""An engine that lies in one way: sound in all its manners, false in what it says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from heddle.agent.ports import Engine, EngineCapabilities, Generation, GenerationRequest, TokenChunk
from heddle.engines.basic import BasicEngine
from heddle.engines.fake import FakeEngine, FakeLauncher, FakeWorker
from heddle.types import CachedPrefix, EngineLoad, WorkerSpec


@dataclass(frozen=True, slots=True)
class Lie:
    """What is put in place of the truth; each hook gets the truth."""

    tokens: Callable[[TokenChunk], TokenChunk] = lambda chunk: chunk
    generation: Callable[[Generation, int], Generation] = lambda generation, number: generation
    """The number counts the generations of this engine, from 0."""


@dataclass(slots=True)
class LyingEngine(BasicEngine):
    """Implements ``Engine`` around a fake one."""

    honest: FakeEngine
    lie: Lie
    generations: int = 0
    capabilities: EngineCapabilities = field(default=FakeEngine.capabilities)

    async def generate(
        self, request: GenerationRequest, on_tokens: Callable[[TokenChunk], None]
    ) -> Generation:
        told: list[TokenChunk] = []

        def tell(chunk: TokenChunk) -> None:
            told.append(self.lie.tokens(chunk))
            on_tokens(told[-1])

        generation = await self.honest.generate(request, tell)
        number, self.generations = self.generations, self.generations + 1
        seen = replace(
            generation,
            token_ids=[token for chunk in told for token in chunk.token_ids],
            logprobs=[logprob for chunk in told for logprob in chunk.logprobs],
        )
        return self.lie.generation(seen, number)

    async def abort(self, request_id: str) -> None:
        await self.honest.abort(request_id)

    async def warm_prefix(self, token_ids: Sequence[int], session_id: str | None = None) -> CachedPrefix:
        return await self.honest.warm_prefix(token_ids, session_id)

    async def load(self) -> EngineLoad:
        return await self.honest.load()

    async def health(self) -> None:
        await self.honest.health()

    async def close(self) -> None:
        await self.honest.close()


@dataclass(slots=True)
class LyingWorker:
    """A running worker whose engine lies."""

    honest: FakeWorker
    engine: Engine
    url: str | None = None
    pid: int | None = None
    slots: int | None = None

    @property
    def kv_capacity_tokens(self) -> int | None:
        return self.honest.kv_capacity_tokens

    @property
    def prefix_capacity_tokens(self) -> int | None:
        return self.honest.prefix_capacity_tokens

    async def wait(self) -> str:
        return await self.honest.wait()

    async def stop(self) -> None:
        await self.honest.stop()


@dataclass(slots=True)
class LyingLauncher:
    """Launches liars in place of fakes; ``liars`` of them, then engines that tell the truth."""

    honest: FakeLauncher
    lie: Lie
    liars: int = 1_000_000

    async def launch(self, spec: WorkerSpec, log_path: Path) -> LyingWorker:
        worker = await self.honest.launch(spec, log_path)
        self.liars -= 1
        return LyingWorker(worker, LyingEngine(worker.engine, self.lie if self.liars >= 0 else Lie()))
