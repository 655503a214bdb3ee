"""Measures what a simulation needs to know of live engines, in about a minute: several of them at once.

Workers of one machine share its memory bus, so all of them do the same at the same time while they are
measured. Medians, not minima: what a rollout meets is the usual step, coordinator and all.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np

from heddle.agent.ports import Engine, GenerationRequest, TokenChunk
from heddle.coordinator.assembly import EngineKit
from heddle.planning.profile import DegreeProfile
from heddle.profiling.steps import BatchTimer, PromptMaker
from heddle.simulate.hardware import EngineTimes
from heddle.types import SamplingParams, WorkerId, WorkerSpec

T = TypeVar("T")

STEPS = 24
"""Timed steps of each batch."""
ROOM_TOKENS = 96
"""More than any batch samples until its steps are seen."""
NEW_TOKENS = (8, 24, 64, 128, 192)
"""Uncached tokens whose prefill is timed; the longest takes several chunks."""
STALL_TOKENS = 24
"""Of the prompt that holds others up; an observation with its template has about so many."""
WARM_TOKENS = 6
"""Of a generation before something is done to it."""
DEADLINE_S = 120.0


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was measured."""

    times: EngineTimes
    prefill_request_s: float
    """Of a request besides its uncached tokens, while nobody else decodes."""
    request_s: float
    """Of a request before and after its prefill, while others decode on."""
    abort_s: float
    """From the order until the slot is free, less the half step that it waits for in the mean."""


@asynccontextmanager
async def running(kit: EngineKit, workers: int, slots: int) -> AsyncIterator[list[Engine]]:
    """Fresh workers of degree 1, stopped at the end."""
    with tempfile.TemporaryDirectory(prefix="heddle-calibrate-") as folder:
        specs = [WorkerSpec(WorkerId(f"c{index}"), 1, slots) for index in range(workers)]
        started = [await kit.launcher.launch(spec, Path(folder) / f"{spec.worker_id}.log") for spec in specs]
        try:
            yield [worker.engine for worker in started]
        finally:
            for worker in started:
                await worker.stop()


@dataclass(slots=True)
class Samples:
    """What one round of measuring saw of all engines."""

    steps: dict[tuple[int, int], list[float]] = field(default_factory=dict)
    """Seconds by context and batch."""
    prefill: list[tuple[int, float]] = field(default_factory=list)
    """Computed tokens, and seconds until the first token."""
    aborts: list[float] = field(default_factory=list)
    stalls: list[float] = field(default_factory=list)


async def measure(
    kit: EngineKit, *, workers: int, slots: int, contexts: Sequence[int], repeats: int, seed: int
) -> Samples:
    """One round on fresh workers: batches up to ``slots`` at each of ``contexts``, prompts, aborts."""
    samples = Samples()
    async with running(kit, workers, slots) as engines:
        gauges = [_Gauge(engine, kit, seed + index) for index, engine in enumerate(engines)]
        for context in contexts:
            await _all(gauge.prepare(context, slots) for gauge in gauges)
            for batch in [*range(1, slots + 1)] * repeats:
                for seen in await _all(gauge.steps(batch) for gauge in gauges):
                    samples.steps.setdefault((context, batch), []).extend(seen)
        for tokens in NEW_TOKENS * 2:
            samples.prefill += await _all(gauge.prefill(tokens) for gauge in gauges)
        for _ in range(4):
            samples.aborts += await _all(gauge.abort() for gauge in gauges)
            samples.stalls += await _all(gauge.stall(STALL_TOKENS) for gauge in gauges)
    return samples


def calibration(rounds: Sequence[Samples], *, slots: int, contexts: Sequence[int]) -> Calibration:
    """What several rounds say together."""

    def step_s(context: int, batch: int) -> float:
        return statistics.median(s for samples in rounds for s in samples.steps[context, batch])

    fixed_s, rate = _line([point for samples in rounds for point in samples.prefill])
    stall_s = statistics.median(s for samples in rounds for s in samples.stalls)
    abort_s = statistics.median(s for samples in rounds for s in samples.aborts)
    blocking_s = min(fixed_s, max(0.0, stall_s - STALL_TOKENS / rate))
    batches = range(1, slots + 1)
    times = EngineTimes(
        tp_degree=1,
        contexts=tuple(float(context) for context in contexts),
        profiles=tuple(
            DegreeProfile.measured(1, [(batch, step_s(context, batch)) for batch in batches])
            for context in contexts
        ),
        prefill_tokens_per_s=rate,
        slots=slots,
    )
    return Calibration(
        times=times,
        prefill_request_s=blocking_s,
        request_s=fixed_s - blocking_s,
        abort_s=max(0.0, abort_s - times.profiles[0].token_seconds / 2),
    )


class _Gauge:
    """Measures one engine."""

    def __init__(self, engine: Engine, kit: EngineKit, seed: int) -> None:
        self._engine = engine
        self._timer = BatchTimer(engine, steps=STEPS, room_tokens=ROOM_TOKENS)
        self._kit = kit
        self._seed = seed
        self._prompts: list[list[int]] = []
        self._requests = 0

    def _fresh(self, tokens: int) -> list[int]:
        self._seed += 1000
        return PromptMaker(self._kit.tokenizer, tokens, self._seed).prompt()

    async def prepare(self, context_tokens: int, slots: int) -> None:
        """Compute a prompt for each slot, so that half of the timed steps reach the mean context."""
        self._prompts = [self._fresh(context_tokens - STEPS // 2) for _ in range(slots)]
        for prompt in self._prompts:
            await self._timer.compute(prompt)

    async def steps(self, batch: int) -> list[float]:
        """Seconds per step; one attempt more where a generation ended early."""
        for _ in range(3):
            seen = await self._timer.time(self._prompts[:batch])
            if seen:
                return seen
        return []

    async def prefill(self, tokens: int) -> tuple[int, float]:
        """Tokens of a prompt that were computed, and seconds until its first token."""
        generation = await self._engine.generate(self._request(self._fresh(tokens), 1), _ignore)
        return generation.prompt_tokens - generation.cached_tokens, generation.prefill_s

    async def stall(self, tokens: int) -> float:
        """The longest pause between two tokens of a generation, because of a prompt of so many tokens."""
        stream = _Stream(WARM_TOKENS)
        request = self._request(self._fresh(16), ROOM_TOKENS)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._engine.generate(request, stream.take))
            await stream.wait(WARM_TOKENS)
            await self._engine.generate(self._request(self._fresh(tokens), 1), _ignore)
            await stream.wait(len(stream.arrivals) + 2)
            await self._engine.abort(request.request_id)
        times = stream.arrivals[WARM_TOKENS - 1 :]
        return max(after - before for before, after in itertools.pairwise(times))

    async def abort(self) -> float:
        """Seconds from the order to abort until the slot is free."""
        stream = _Stream(WARM_TOKENS)
        request = self._request(self._fresh(16), ROOM_TOKENS)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._engine.generate(request, stream.take))
            await stream.wait(WARM_TOKENS)
            began = time.monotonic()
            await self._engine.abort(request.request_id)
            return time.monotonic() - began

    def _request(self, prompt_ids: Sequence[int], max_new_tokens: int) -> GenerationRequest:
        self._requests += 1
        return GenerationRequest(
            request_id=f"calibrate-{self._requests}",
            prompt_ids=prompt_ids,
            max_new_tokens=max_new_tokens,
            sampling=SamplingParams(temperature=0.0),
            ignore_end=True,
            deadline_s=DEADLINE_S,
            first_token_deadline_s=DEADLINE_S,
        )


class _Stream:
    """When the tokens of a generation came."""

    def __init__(self, wanted: int) -> None:
        self.arrivals: list[float] = []
        self._wanted = wanted
        self._seen = asyncio.Event()

    def take(self, chunk: TokenChunk) -> None:
        """More of them."""
        self.arrivals += [time.monotonic()] * len(chunk.token_ids)
        if len(self.arrivals) >= self._wanted:
            self._seen.set()

    async def wait(self, tokens: int) -> None:
        """Until so many have come, in all."""
        self._wanted = tokens
        if len(self.arrivals) < tokens:
            self._seen.clear()
            async with asyncio.timeout(DEADLINE_S):
                await self._seen.wait()


async def _all(awaitables: Iterable[Awaitable[T]]) -> list[T]:
    return list(await asyncio.gather(*awaitables))


def _line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Seconds at no tokens, and tokens per second, through the medians of each number of tokens."""
    by_tokens: dict[int, list[float]] = {}
    for computed, taken_s in points:
        by_tokens.setdefault(computed, []).append(taken_s)
    tokens = np.array(sorted(by_tokens), dtype=np.float64)
    seconds = np.array([statistics.median(by_tokens[int(n)]) for n in tokens])
    slope, fixed = np.polyfit(tokens, seconds, 1)
    return max(0.0, float(fixed)), 1.0 / float(slope)


def _ignore(chunk: TokenChunk) -> None:
    """Only its time counts."""
