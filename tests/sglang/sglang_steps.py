"""What the tests do to a server again and again."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from heddle.agent.ports import Generation, GenerationRequest, TokenChunk
from heddle.engines.sglang.adapter import SGLangEngine
from heddle.types import SamplingParams

DEADLINE_S = 60.0
"""Of everything that a test waits for; generous, because machines that test are busy."""

GREEDY = SamplingParams(temperature=0.0)
_numbers = itertools.count()


def prompt(tokens: int, seed: int = 0) -> list[int]:
    """A prompt that shares nothing with those of other seeds."""
    return [3 + (seed * 101 + i * (7 + seed)) % 1000 for i in range(tokens)]


def request(prompt_ids: Sequence[int], max_new_tokens: int, **changes: Any) -> GenerationRequest:
    """A greedy generation of exactly so many tokens."""
    fields: dict[str, Any] = {
        "request_id": f"test-{next(_numbers)}",
        "sampling": GREEDY,
        "ignore_end": True,
        "deadline_s": DEADLINE_S,
        "first_token_deadline_s": DEADLINE_S,
        **changes,
    }
    return GenerationRequest(prompt_ids=prompt_ids, max_new_tokens=max_new_tokens, **fields)


@dataclass
class Running:
    """A generation under way."""

    request: GenerationRequest
    task: asyncio.Task[Generation]
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    progress: asyncio.Event = field(default_factory=asyncio.Event)

    async def sampled(self, tokens: int) -> None:
        """Until so many have come."""
        async with asyncio.timeout(DEADLINE_S):
            while len(self.token_ids) < tokens:
                self.progress.clear()
                await self.progress.wait()

    async def result(self) -> Generation:
        async with asyncio.timeout(DEADLINE_S):
            return await self.task


def start(engine: SGLangEngine, asked: GenerationRequest) -> Running:
    """Begin a generation."""
    running: Running

    def note(chunk: TokenChunk) -> None:
        running.token_ids.extend(chunk.token_ids)
        running.logprobs.extend(chunk.logprobs)
        running.versions.extend([chunk.weight_version] * len(chunk.token_ids))
        running.progress.set()

    running = Running(asked, asyncio.create_task(engine.generate(asked, note)))
    return running


async def generate(engine: SGLangEngine, asked: GenerationRequest) -> Generation:
    """A whole generation."""
    return await start(engine, asked).result()


async def until(condition: Callable[[dict[str, Any]], bool], url: str) -> None:
    """Until the server's own report says so."""
    async with asyncio.timeout(DEADLINE_S), httpx.AsyncClient(trust_env=False) as client:
        while True:
            report = (await client.get(f"{url}/v1/loads?include=core,queues")).json()
            if condition(report["loads"][0]):
                return
            await asyncio.sleep(0.01)


async def idle(url: str) -> None:
    """Nothing runs and nothing waits."""
    await until(lambda load: load["num_running_reqs"] == load["num_waiting_reqs"] == 0, url)
