"""An engine without a model: honest about slots, prefixes, aborts and deadlines, free of everything else.

What it samples is a function of all ids before it and of the seed, so a generation that is aborted and
resumed with its partial output goes on exactly as it would have. Used by tests, examples and benchmarks;
at no delay a generation costs a few tens of microseconds.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from heddle.agent.ports import Engine, EngineCapabilities, Generation, GenerationRequest, TokenChunk
from heddle.engines.basic import BasicEngine
from heddle.engines.fake_cache import BYTES_PER_TOKEN, PREFIX_BLOCK_TOKENS, PrefixCache, encode_ids
from heddle.errors import (
    EngineRejected,
    EngineTimeout,
    EngineUnavailable,
    HeddleError,
    UnsupportedByEngine,
)
from heddle.types import CachedPrefix, EngineLoad, FinishReason, PrefixTransfer, WorkerSpec

Script = Callable[[GenerationRequest], Sequence[int]]
"""What to sample for a request; cut off at the request's limit, and at the first end-of-turn id."""


@dataclass(frozen=True, slots=True)
class FakeModel:
    """What is sampled, and how fast."""

    script: Script | None = None
    """``None`` samples ids that look random, with an end of turn after about ``mean_tokens``."""
    mean_tokens: int = 32
    vocabulary: int = 32_000
    end_of_turn_id: int = 2
    token_delay_s: float = 0.0
    """Before each chunk of tokens; 0 gives a whole generation at once, after the event loop had its turn."""
    chunk_tokens: int = 1
    """Tokens that come together."""
    context_tokens: int = 1 << 20
    transfer_delay_s: float = 0.0
    """What a prefix takes from one fake to another."""


@dataclass(frozen=True, slots=True)
class FakeFaults:
    """What goes wrong; each in every generation that gets so far."""

    crash_after_tokens: int | None = None
    """The engine dies, and everything that runs in it."""
    hang_after_tokens: int | None = None
    """No further token comes, until an abort, a cancellation or a deadline."""


@dataclass(slots=True)
class _Flight:
    aborted: bool = False
    interrupted: asyncio.Event = field(default_factory=asyncio.Event)
    landed: asyncio.Event = field(default_factory=asyncio.Event)


class FakeEngine(BasicEngine):
    """One fake server with ``slots`` places. ``crash`` makes it unavailable for good."""

    capabilities = EngineCapabilities(json_schema=True, ignore_end=True, prefix_warmup=True, kv_transfer=True)

    def __init__(
        self,
        *,
        slots: int,
        model: FakeModel = FakeModel(),
        faults: FakeFaults = FakeFaults(),
        kv_capacity_tokens: int = 1 << 20,
    ) -> None:
        self.kv_capacity_tokens = kv_capacity_tokens
        self.generations = 0
        """Finished or not, all that were taken up."""
        self.transfers = 0
        """Prefixes that it began to hand to others."""
        self._slots = slots
        self._model = model
        self._faults = faults
        self._stepwise = model.token_delay_s > 0.0 or faults != FakeFaults()
        """Tokens come one by one, and take time."""
        self._places = asyncio.Semaphore(slots)
        self._prefixes = PrefixCache(max(kv_capacity_tokens // PREFIX_BLOCK_TOKENS, 1))
        self._flights: dict[str, _Flight] = {}
        self._running = 0
        self._crashed: str | None = None
        self.crashed = asyncio.Event()

    async def generate(
        self, request: GenerationRequest, on_tokens: Callable[[TokenChunk], None]
    ) -> Generation:
        """See ``Engine.generate``."""
        self._check(request)
        flight = self._flights[request.request_id] = _Flight()
        try:
            async with asyncio.timeout(self._deadline_s(request)), self._places:
                self._running += 1
                self.generations += 1
                try:
                    return await self._generate(request, flight, on_tokens)
                finally:
                    self._running -= 1
        except TimeoutError as exc:
            raise EngineTimeout(f"the generation was not done after {request.deadline_s:g} s") from exc
        finally:
            del self._flights[request.request_id]
            flight.landed.set()

    async def abort(self, request_id: str) -> None:
        """See ``Engine.abort``; one that still waits for a slot ends when it gets it."""
        flight = self._flights.get(request_id)
        if flight is not None:
            flight.aborted = True
            flight.interrupted.set()
            await flight.landed.wait()

    async def warm_prefix(self, token_ids: Sequence[int], session_id: str | None = None) -> CachedPrefix:
        """See ``Engine.warm_prefix``."""
        self._raise_if_crashed()
        return CachedPrefix(self._prefixes.admit(encode_ids(token_ids)).tokens)

    async def transfer(
        self, token_ids: Sequence[int], target: Engine, session_id: str | None = None
    ) -> PrefixTransfer:
        """See ``Engine.transfer``; takes ``transfer_delay_s``; whole blocks are moved."""
        if not isinstance(target, FakeEngine):
            raise UnsupportedByEngine("a fake engine exchanges prefixes with its like alone")
        self._raise_if_crashed()
        encoded = encode_ids(token_ids)
        moved = self._prefixes.known(encoded)
        if not moved:
            raise EngineRejected("nothing of the prefix is here any more")
        self.transfers += 1
        await asyncio.sleep(self._model.transfer_delay_s)
        for end in (self, target):
            end._raise_if_crashed()
        target._prefixes.admit(encoded[: moved * BYTES_PER_TOKEN])
        return PrefixTransfer(moved_tokens=moved)

    async def load(self) -> EngineLoad:
        """See ``Engine.load``."""
        self._raise_if_crashed()
        return EngineLoad(
            running=self._running,
            waiting=len(self._flights) - self._running,
            kv_used_tokens=len(self._prefixes) * PREFIX_BLOCK_TOKENS,
            kv_capacity_tokens=self.kv_capacity_tokens,
        )

    async def health(self) -> None:
        """See ``Engine.health``."""
        self._raise_if_crashed()

    async def close(self) -> None:
        """Nothing is held."""

    def crash(self, reason: str) -> None:
        """Die: what runs raises ``EngineUnavailable``, and so does everything from now on."""
        if self._crashed is None:
            self._crashed = reason
            self.crashed.set()
            for flight in self._flights.values():
                flight.interrupted.set()

    def __repr__(self) -> str:
        state = f"crashed: {self._crashed}" if self._crashed else f"{self._running}/{self._slots} slots"
        return f"<FakeEngine {state}>"

    # ---------------------------------------------------------------------------- one generation

    def _deadline_s(self, request: GenerationRequest) -> float | None:
        """None where nothing takes time: a timer for each of many thousands would."""
        return request.deadline_s if self._stepwise else None

    def _check(self, request: GenerationRequest) -> None:
        self._raise_if_crashed()
        if not request.prompt_ids or request.max_new_tokens < 1:
            raise EngineRejected("a generation needs a prompt and room for at least one token")
        if len(request.prompt_ids) >= self._model.context_tokens:
            raise EngineRejected(
                f"{len(request.prompt_ids)} tokens exceed the context of {self._model.context_tokens}"
            )
        if request.request_id in self._flights:
            raise EngineRejected(f"request {request.request_id!r} is in flight already")

    async def _generate(
        self, request: GenerationRequest, flight: _Flight, on_tokens: Callable[[TokenChunk], None]
    ) -> Generation:
        started_at = asyncio.get_running_loop().time()
        prompt = encode_ids(request.prompt_ids)
        known = self._prefixes.admit(prompt)
        room = min(request.max_new_tokens, self._model.context_tokens - len(request.prompt_ids))
        planned, logprobs = self._sample(request, prompt, room)
        sent = await self._emit(request, flight, planned, logprobs, on_tokens)
        token_ids = planned[:sent]
        self._prefixes.admit(prompt + encode_ids(token_ids), known)
        return Generation(
            token_ids=token_ids,
            logprobs=logprobs[:sent],
            finish_reason=self._finish(token_ids, len(planned)),
            prompt_tokens=len(request.prompt_ids),
            cached_tokens=known.tokens,
            weight_version=0,
            prefill_s=0.0,
            decode_s=asyncio.get_running_loop().time() - started_at,
            echoed_sampling=request.sampling,
        )

    def _finish(self, token_ids: list[int], planned: int) -> FinishReason:
        if len(token_ids) < planned:
            return FinishReason.ABORT
        if token_ids and token_ids[-1] == self._model.end_of_turn_id:
            return FinishReason.STOP
        return FinishReason.LENGTH

    async def _emit(
        self,
        request: GenerationRequest,
        flight: _Flight,
        token_ids: list[int],
        logprobs: list[float],
        on_tokens: Callable[[TokenChunk], None],
    ) -> int:
        """Hand the tokens out at the model's pace; returns how many were, an abort may cut them short."""
        stride = self._model.chunk_tokens if self._stepwise else len(token_ids)
        sent = 0
        while True:
            await self._pace(request, flight, sent)
            if flight.aborted or sent >= len(token_ids):
                return sent
            on_tokens(TokenChunk(token_ids[sent : sent + stride], logprobs[sent : sent + stride]))
            sent = min(sent + stride, len(token_ids))
            if sent == len(token_ids):
                return sent

    async def _pace(self, request: GenerationRequest, flight: _Flight, sent: int) -> None:
        """The pause before the next token, and whatever goes wrong instead of it."""
        if sent == self._faults.crash_after_tokens:
            self.crash(f"crashed after {sent} tokens")
        if sent == self._faults.hang_after_tokens:
            try:
                async with asyncio.timeout(request.first_token_deadline_s):
                    await flight.interrupted.wait()
            except TimeoutError as exc:
                raise EngineTimeout(f"no token for {request.first_token_deadline_s:g} s") from exc
        elif self._model.token_delay_s > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._model.token_delay_s):
                    await flight.interrupted.wait()
        else:
            await asyncio.sleep(0)
        self._raise_if_crashed()

    def _raise_if_crashed(self) -> None:
        if self._crashed is not None:
            raise EngineUnavailable(self._crashed)

    # --------------------------------------------------------------------------------- sampling

    def _sample(self, request: GenerationRequest, prompt: bytes, room: int) -> tuple[list[int], list[float]]:
        if request.ignore_end or self._model.script is None:
            seed = request.sampling.seed or 0
            token_ids = self._sample_freely(prompt, seed, room, ignore_end=request.ignore_end)
        else:
            token_ids = list(self._model.script(request))[:room]
            if self._model.end_of_turn_id in token_ids:
                del token_ids[token_ids.index(self._model.end_of_turn_id) + 1 :]
        if not token_ids:
            raise EngineRejected("the script gave no token")
        return token_ids, [-0.01 - (token_id % 97) / 50.0 for token_id in token_ids]

    def _sample_freely(self, prompt: bytes, seed: int, room: int, *, ignore_end: bool) -> list[int]:
        """Each id is a function of a checksum over everything before it."""
        model = self._model
        state = zlib.crc32(prompt, seed)
        token_ids: list[int] = []
        while len(token_ids) < room:
            mixed = state * 2_654_435_761 >> 8
            token_id = mixed % model.vocabulary
            if (mixed >> 20) % model.mean_tokens == 0:
                token_id = model.end_of_turn_id
            if ignore_end and token_id == model.end_of_turn_id:
                token_id += 1
            token_ids.append(token_id)
            if token_id == model.end_of_turn_id:
                break
            state = zlib.crc32(encode_ids((token_id,)), state)
        return token_ids


class FakeWorker:
    """A running fake; it ends when its engine crashes."""

    url: str | None = None
    pid: int | None = None
    slots: int | None = None

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.kv_capacity_tokens: int | None = engine.kv_capacity_tokens
        self.prefix_capacity_tokens: int | None = engine.kv_capacity_tokens
        self.stopped = False

    async def wait(self) -> str:
        """See ``RunningWorker.wait``."""
        await self.engine.crashed.wait()
        return "the fake engine crashed"

    async def stop(self) -> None:
        """See ``RunningWorker.stop``."""
        self.stopped = True
        self.engine.crash("stopped")


class FakeLauncher:
    """Launches fakes. ``failures`` are raised by the first launches, one each; ``faults`` likewise go
    into the first engines, one each, so that a restarted one is sound."""

    def __init__(
        self,
        *,
        model: FakeModel = FakeModel(),
        launch_delay_s: float = 0.0,
        failures: Sequence[HeddleError] = (),
        faults: Sequence[FakeFaults] = (),
        kv_capacity_tokens: int = 1 << 20,
    ) -> None:
        self.launched: list[FakeWorker] = []
        self._model = model
        self._launch_delay_s = launch_delay_s
        self._failures = list(failures)
        self._faults = list(faults)
        self._kv_capacity_tokens = kv_capacity_tokens

    async def launch(self, spec: WorkerSpec, log_path: Path) -> FakeWorker:
        """See ``EngineLauncher.launch``; nothing is written to ``log_path``."""
        await asyncio.sleep(self._launch_delay_s)
        if self._failures:
            raise self._failures.pop(0)
        engine = FakeEngine(
            slots=spec.slots,
            model=self._model,
            faults=self._faults.pop(0) if self._faults else FakeFaults(),
            kv_capacity_tokens=self._kv_capacity_tokens,
        )
        worker = FakeWorker(engine)
        self.launched.append(worker)
        return worker
