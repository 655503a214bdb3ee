"""``SGLangEngine``: the ``Engine`` protocol over SGLang's HTTP server.

What the server obliges us to:

- it aborts every request whose id *begins* with the given one, so ids are its own here: random and of equal
  length, whatever the caller's are;
- an abort of an id that it has not taken up yet is forgotten, so an abort is repeated until the stream ends;
- the stream's end is the proof that the slot is free, so a cancelled or late generation is read to its end;
- an id that is used again within two seconds of its stream's end may be aborted as the former one's;
- a request that comes during a pause is held where no abort finds it, so it is held here;
- an id beyond the vocabulary kills the server;
- a request can be aborted by others (an operator, a pause, one of a higher priority): its tokens are valid
  and nothing failed, which is ``EngineInterrupted``;
- prefixes are looked up by token ids alone, so the weight version goes into every request's ``extra_key``.

No HTTP timeout bounds a generation (a trickle of bytes would defeat it): one deadline per generation is
moved on by tokens, and by nothing else.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from heddle.agent.ports import (
    Engine,
    EngineCapabilities,
    Generation,
    GenerationRequest,
    TokenChunk,
)
from heddle.engines.sglang.client import SGLangClient
from heddle.engines.sglang.control import ServerControl
from heddle.engines.sglang.facts import ServerFacts, ask_facts, ask_weight_version
from heddle.engines.sglang.flight import Flight
from heddle.engines.sglang.loads import RankLoad
from heddle.engines.sglang.priority import WARM_UP_LEVEL, priority_level
from heddle.engines.sglang.protocol import cache_key, error_of_abort, generate_body
from heddle.engines.sglang.stream import read_events
from heddle.engines.uninterrupted import uninterrupted
from heddle.errors import EngineError, EngineRejected, EngineTimeout, EngineUnavailable, UnsupportedByEngine
from heddle.types import (
    CachedPrefix,
    EngineLoad,
    PauseMode,
    PrefixTransfer,
    SamplingParams,
    WeightCall,
)

RELEASE_TIMEOUT_S = 15.0
"""Longest wait for a stream's end after its abort was ordered; then its connection is closed."""
ABORT_AGAIN_S = 0.5
"""Pause before an abort is repeated."""
WARM_UP_DEADLINE_S = 600.0


@dataclass(frozen=True, slots=True)
class SGLangSettings:
    """How one server is used."""

    max_in_flight: int = 4096
    """Generations sent at once, as many as a worker can have slots; more wait, inside their deadlines."""
    native_priority: bool = False
    """Send ranks as priorities and leave order and preemption to the server, which must schedule by them."""
    end_ids: tuple[int, ...] = ()
    """Ids that end a generation, besides those that the model's own configuration names."""
    vocabulary: int | None = None
    """Ids from here on are refused; ``None`` leaves that to whoever tokenises."""
    api_key: str | None = None


class SGLangEngine:
    """One server. Made by ``connect``, which learns what the server can do."""

    def __init__(
        self, client: SGLangClient, facts: ServerFacts, weight_version: int, settings: SGLangSettings
    ) -> None:
        if settings.native_priority and not facts.capabilities.native_priority:
            raise UnsupportedByEngine(f"{client.url} does not preempt by priority")
        self.facts = facts
        self.capabilities: EngineCapabilities = facts.capabilities
        self.weight_version = weight_version
        """Of the weights that serve now, as far as the server has said."""
        self._client = client
        self._control = ServerControl(client)
        self._settings = settings
        self._flights: dict[str, Flight] = {}
        self._permits = asyncio.Semaphore(settings.max_in_flight)
        self._going = asyncio.Event()
        self._going.set()
        """Not set while this engine pauses the server."""
        self._closed = False

    @classmethod
    async def connect(cls, url: str, settings: SGLangSettings = SGLangSettings()) -> SGLangEngine:
        """Ask a server what it can do. Raises ``EngineUnavailable``, ``UnsupportedByEngine``."""
        client = SGLangClient(url, streams=settings.max_in_flight, api_key=settings.api_key)
        try:
            return cls(client, await ask_facts(client), await ask_weight_version(client), settings)
        except BaseException:
            await uninterrupted(client.close())
            raise

    @property
    def grants(self) -> int | None:
        """Generations that may be sent at once; ``None`` where the server orders those that wait itself."""
        return None if self._settings.native_priority else self.facts.slots

    async def generate(
        self, request: GenerationRequest, on_tokens: Callable[[TokenChunk], None]
    ) -> Generation:
        """Stream one generation; see ``Engine.generate``."""
        if request.max_new_tokens < 1:
            raise EngineRejected(f"max_new_tokens must be at least 1, not {request.max_new_tokens}")
        if request.json_schema is not None and not self.capabilities.json_schema:
            raise UnsupportedByEngine(f"{self._client.url} generates under no grammar")
        level = priority_level(request.priority) if self._settings.native_priority else None
        return await self._generate(request, on_tokens, level)

    async def abort(self, request_id: str) -> None:
        """End a running generation; returns when its slot is free. An unknown id is a no-op."""
        flight = self._flights.get(request_id)
        if flight is not None:
            flight.aborted = True
            await self._withdraw(flight)
            await flight.landed.wait()

    async def warm_prefix(self, token_ids: Sequence[int], session_id: str | None = None) -> CachedPrefix:
        """Compute a prefix into the cache; tells how much of it was there, and where.

        No token is sampled, unless the server speculates: then one is, and is thrown away.
        """
        rid = secrets.token_hex(16)
        request = GenerationRequest(
            request_id=rid,
            prompt_ids=token_ids,
            max_new_tokens=0 if self.facts.speculative_algorithm is None else 1,
            sampling=SamplingParams(temperature=0.0),
            session_id=session_id,
            deadline_s=WARM_UP_DEADLINE_S,
            first_token_deadline_s=WARM_UP_DEADLINE_S,
        )
        level = WARM_UP_LEVEL if self._settings.native_priority else None
        generation = await self._generate(request, lambda chunk: None, level)
        return CachedPrefix(generation.cached_tokens, generation.cache_sources)

    async def transfer(
        self, token_ids: Sequence[int], target: Engine, session_id: str | None = None
    ) -> PrefixTransfer:
        """See ``Engine.transfer``: the target reads from the store what this server wrote there long ago.

        What the store lacks the target computes; the answer tells one from the other.
        """
        if not (self.capabilities.kv_transfer and isinstance(target, SGLangEngine)):
            raise UnsupportedByEngine(f"{self._client.url} shares no store of prefixes with the target")
        if not target.capabilities.kv_transfer:
            raise UnsupportedByEngine(f"{target._client.url} has no store of prefixes")
        found = await target.warm_prefix(token_ids, session_id)
        return PrefixTransfer(
            moved_tokens=found.tokens,
            computed_tokens=max(0, len(token_ids) - found.tokens),
            sources=found.sources,
        )

    async def close_session(self, session_id: str) -> None:
        """See ``Engine.close_session``."""
        if not self.capabilities.sessions:
            raise UnsupportedByEngine(f"{self._client.url} keeps no sessions")
        await self._control.close_session(session_id)

    async def set_slots(self, slots: int) -> None:
        """See ``Engine.set_slots``; never more than the server was started with."""
        await self._control.set_slots(slots)

    async def pause(self, mode: PauseMode) -> None:
        """See ``Engine.pause``. New generations wait here meanwhile, inside their deadlines."""
        self._going.clear()
        await self._control.pause(mode)

    async def resume(self) -> None:
        """See ``Engine.resume``."""
        await self._control.resume()
        self._going.set()

    async def update_weights(self, path: str, version: int) -> None:
        """See ``Engine.update_weights``. Later generations find no prefix of the old weights.

        Without ``pause`` it waits for running ones to end. Those that a pause retracted would find their
        old prefixes again: ``flush_cache`` before ``resume``.
        """
        await self._control.update_weights_from_disk(path, version)
        self.weight_version = version

    async def begin_push(self) -> None:
        """See ``Engine.begin_push``."""
        await self._control.begin_weight_update()

    async def push_weights(self, call: WeightCall) -> None:
        """See ``Engine.push_weights``; the endpoints are SGLang's."""
        await self._control.weight_call(call.endpoint, call.body)

    async def end_push(self, version: int) -> None:
        """See ``Engine.end_push``."""
        await self._control.end_weight_update(version)
        self.weight_version = version

    async def flush_cache(self) -> None:
        """See ``Engine.flush_cache``; what other servers share of it stays in their store."""
        await self._control.flush_cache()

    async def loads(self) -> list[RankLoad]:
        """What each data-parallel rank is doing, and the moments of its decoding steps."""
        return await self._control.loads()

    async def load(self) -> EngineLoad:
        """All ranks as one."""
        return await self._control.load()

    async def health(self) -> None:
        """See ``Engine.health``. A server that pauses is well, although it calls itself not ready."""
        await self._control.health(paused=not self._going.is_set())

    async def close(self) -> None:
        """Release the connections; the server goes on, generations raise ``EngineUnavailable``."""
        self._closed = True
        flights = list(self._flights.values())
        for flight in flights:
            if flight.exchange is not None:
                flight.exchange.cancel()
        for flight in flights:
            await flight.landed.wait()
        await self._client.close()

    # ---------------------------------------------------------------------------- one generation

    async def _generate(
        self, request: GenerationRequest, on_tokens: Callable[[TokenChunk], None], level: int | None
    ) -> Generation:
        flight = self._take_off(request)
        try:
            await self._fly(flight, on_tokens, level)
        finally:
            del self._flights[request.request_id]
            flight.landed.set()
        return self._outcome(flight)

    def _take_off(self, request: GenerationRequest) -> Flight:
        if self._closed:
            raise EngineUnavailable("the engine is closed")
        if not request.prompt_ids:
            raise EngineRejected("a generation needs a prompt")
        if self._settings.vocabulary is not None and max(request.prompt_ids) >= self._settings.vocabulary:
            raise EngineRejected(f"the model has no token {max(request.prompt_ids)}")
        if request.request_id in self._flights:
            raise EngineRejected(f"request {request.request_id!r} is in flight already")
        now = asyncio.get_running_loop().time()
        give_up_at = now + request.deadline_s
        scope = asyncio.timeout_at(min(give_up_at, now + request.first_token_deadline_s))
        flight = Flight(request, secrets.token_hex(16), give_up_at, scope, called_at=now)
        self._flights[request.request_id] = flight
        return flight

    async def _fly(self, flight: Flight, on_tokens: Callable[[TokenChunk], None], level: int | None) -> None:
        """The exchange is a task of its own: it must outlive a cancellation until the slot is free."""
        exchange = asyncio.create_task(self._exchange(flight, on_tokens, level))
        flight.exchange = exchange
        try:
            async with flight.scope:
                await asyncio.wait({exchange})
        except TimeoutError as exc:
            await uninterrupted(self._withdraw(flight))
            finish = flight.account.finish
            if not flight.aborted and (finish is None or finish.type == "abort"):
                raise EngineTimeout(flight.describe_timeout(asyncio.get_running_loop().time())) from exc
        except asyncio.CancelledError:
            await uninterrupted(self._withdraw(flight))
            raise
        if self._closed and exchange.cancelled():
            raise EngineUnavailable("the engine was closed")
        if not exchange.cancelled():
            exchange.result()

    async def _exchange(
        self, flight: Flight, on_tokens: Callable[[TokenChunk], None], level: int | None
    ) -> None:
        async with self._permits:
            await self._going.wait()
            flight.sent = True
            await self._stream(flight, on_tokens, level)

    async def _stream(
        self, flight: Flight, on_tokens: Callable[[TokenChunk], None], level: int | None
    ) -> None:
        request = flight.request
        body = generate_body(
            request,
            rid=flight.rid,
            extra_key=cache_key(self.weight_version),
            end_ids=self._settings.end_ids,
            session_id=request.session_id if self.capabilities.sessions else None,
            priority=level,
        )
        loop = asyncio.get_running_loop()
        async with (
            self._client.stream("/generate", body) as content,
            aclosing(read_events(content.iter_any())) as events,
        ):
            async for event in events:
                chunk = flight.account.take(event)
                if chunk is not None:
                    flight.note_progress(loop.time())
                    on_tokens(chunk)

    async def _withdraw(self, flight: Flight) -> None:
        """Order the abort until the stream has ended; where that takes too long, close its connection."""
        exchange = flight.exchange
        if exchange is None:
            return
        if not flight.sent:
            exchange.cancel()
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT_S):
                while not exchange.done():
                    await self._control.abort(flight.rid)
                    await asyncio.wait({exchange}, timeout=ABORT_AGAIN_S)
        except (TimeoutError, EngineError):
            exchange.cancel()  # dead or hung: whoever watches the process will say so
            await asyncio.wait({exchange})
        if not exchange.cancelled():
            exchange.exception()  # retrieved, should nobody ask any more

    def _outcome(self, flight: Flight) -> Generation:
        account = flight.account
        if account.version is not None:
            self.weight_version = account.version
        finish = account.finish
        if finish is not None and finish.type == "abort" and not flight.aborted:
            raise error_of_abort(finish)
        return flight.generation(self.weight_version)
