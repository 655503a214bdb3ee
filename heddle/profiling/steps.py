"""Times the decoding steps of one running batch, through the ``Engine`` port alone.

``batch`` generations start together, each on a prompt of its own. What counts is the time between their
tokens while *all* of them run: from the moment when the last one has sampled its first tokens to the moment
when the first one ends. The ramp before and the thinning out after are left out, whatever an engine does
there. When enough steps have been seen, the generations are aborted.

Nothing forbids a model to end its turn. The prompts are lists that repeat themselves, and models go on
repeating them; one that stops early all the same costs the rest of that attempt, and is tried again with
other lists.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from heddle.agent.ports import Engine, GenerationRequest, TokenChunk, Tokenizer
from heddle.errors import EngineError
from heddle.types import SamplingParams

RAMP_TOKENS = 2
"""Tokens of each generation that are not timed: the first comes out of the prompt's computation."""
SAMPLE_STEPS = 8
"""Neighbouring steps that make one sample; tokens may travel in pairs, and a mean of eight hides it."""
MIN_SAMPLES = 2
"""Fewer than these from a generation, and the attempt is thrown away."""
MAX_ATTEMPTS = 4
DEADLINE_S = 300.0
"""Of one generation, and of its first token."""

_GREEDY = SamplingParams(temperature=0.0)


@dataclass(slots=True)
class _Stream:
    """One generation of the batch and when its tokens came."""

    request_id: str
    prompt_ids: Sequence[int]
    arrivals: list[float] = field(default_factory=list)


class PromptMaker:
    """Prompts of a given length that share no beginning, and that invite to go on for ever."""

    def __init__(self, tokenizer: Tokenizer, tokens: int, seed: int) -> None:
        self._tokenizer = tokenizer
        self._tokens = tokens
        self._rng = random.Random(seed)

    def prompt(self) -> list[int]:
        """Token ids, exactly as many as asked for."""
        line = " ".join(str(self._rng.randrange(10)) for _ in range(12)) + "\n"
        ids: list[int] = []
        text = line
        while len(ids) < self._tokens:
            ids = self._tokenizer.encode(text)
            text += text
        return ids[: self._tokens]


class BatchTimer:
    """Times batches on one engine. ``steps`` are wanted of every batch, ``room_tokens`` is what a
    generation may sample until they are seen."""

    def __init__(self, engine: Engine, *, steps: int, room_tokens: int) -> None:
        self._engine = engine
        self._steps = steps
        self._room_tokens = room_tokens
        self._requests = 0

    async def compute(self, prompt_ids: Sequence[int]) -> float:
        """Compute a prompt by itself, so that batches start from the cache; tokens per second."""
        generation = await self._engine.generate(self._request(prompt_ids, max_new_tokens=1), _ignore)
        computed = generation.prompt_tokens - generation.cached_tokens
        return computed / max(generation.prefill_s, 1e-9)

    async def time(self, prompts: Sequence[Sequence[int]]) -> list[float]:
        """Seconds per step of a batch of these prompts; empty where a generation ended too early.

        Raises a group of ``EngineError`` where the engine fails.
        """
        streams = [_Stream(self._name(), prompt) for prompt in prompts]
        seen = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            for stream in streams:
                tasks.create_task(self._run(stream, streams, seen))
            await seen.wait()
            for stream in streams:
                await self._engine.abort(stream.request_id)
        return steady_steps([stream.arrivals for stream in streams])

    async def _run(self, stream: _Stream, all_streams: Sequence[_Stream], seen: asyncio.Event) -> None:
        now = asyncio.get_running_loop().time

        def arrived(chunk: TokenChunk) -> None:
            stream.arrivals.extend([now()] * len(chunk.token_ids))
            if min(len(other.arrivals) for other in all_streams) >= RAMP_TOKENS + self._steps:
                seen.set()

        request = self._request(stream.prompt_ids, self._room_tokens, stream.request_id)
        try:
            await self._engine.generate(request, arrived)
        finally:
            seen.set()  # the batch is no longer whole

    def _request(
        self, prompt_ids: Sequence[int], max_new_tokens: int, request_id: str | None = None
    ) -> GenerationRequest:
        return GenerationRequest(
            request_id=request_id or self._name(),
            prompt_ids=prompt_ids,
            max_new_tokens=max_new_tokens,
            sampling=_GREEDY,
            deadline_s=DEADLINE_S,
            first_token_deadline_s=DEADLINE_S,
        )

    def _name(self) -> str:
        self._requests += 1
        return f"profile-{self._requests}"


def steady_steps(arrivals: Sequence[Sequence[float]]) -> list[float]:
    """Seconds per step, one sample for each :data:`SAMPLE_STEPS` tokens of each generation.

    ``arrivals`` holds the times of the tokens of each generation. Only the time in which all of them ran
    counts. Empty where that is less than :data:`MIN_SAMPLES` samples of each.
    """
    if min(map(len, arrivals)) <= RAMP_TOKENS:
        return []
    begin = max(times[RAMP_TOKENS - 1] for times in arrivals)
    end = min(times[-1] for times in arrivals)
    samples: list[float] = []
    for times in arrivals:
        inside = [at for at in times[RAMP_TOKENS - 1 :] if begin <= at <= end]
        marks = inside[::SAMPLE_STEPS]
        if len(marks) <= MIN_SAMPLES:
            return []
        samples += [(b - a) / SAMPLE_STEPS for a, b in itertools.pairwise(marks)]
    return samples


def ended_early(batch: int) -> EngineError:
    """What to raise where no attempt ran long enough."""
    return EngineError(f"the model ended a batch of {batch} too early in {MAX_ATTEMPTS} attempts to time it")


def _ignore(chunk: TokenChunk) -> None:
    """Tokens of a prompt that is computed for the cache."""
