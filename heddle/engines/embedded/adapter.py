"""``EmbeddedEngine``: the ``Engine`` protocol over llama.cpp's HTTP server.

What the server obliges us to:

- a request can be aborted only by closing its stream, so every request streams, and a slot is free when
  ``/slots`` no longer shows the request's tag;
- a request beyond the slots would wait inside the server where nothing can abort it, so the queue is
  ours: never more requests in flight than slots;
- the server may keep a connection for a while after its answer and close it just as we use it again;
  on loopback a new one costs nothing, so none is kept.

No HTTP timeout bounds a generation (a trickle of bytes would defeat it): one deadline per generation is
moved on by tokens, and by nothing else.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

import httpx
import orjson
from pydantic import TypeAdapter, ValidationError

from heddle.agent.ports import EngineCapabilities, Generation, GenerationRequest, TokenChunk
from heddle.engines.basic import BasicEngine
from heddle.engines.embedded.protocol import (
    Slot,
    StreamEvent,
    checked_tokens,
    completion_body,
    echoed_sampling,
    error_of_event,
    error_of_status,
    error_of_transport,
    finish_reason,
    read_events,
)
from heddle.engines.embedded.schema import check_schema
from heddle.engines.uninterrupted import uninterrupted
from heddle.errors import EngineRejected, EngineTimeout, EngineUnavailable
from heddle.types import CachedPrefix, EngineLoad, FinishReason, SamplingParams

CONNECT_TIMEOUT_S = 10.0
CONTROL_TIMEOUT_S = 15.0
"""``/slots`` and ``/metrics`` are answered between two decoding steps: at most seconds under load."""
RELEASE_TIMEOUT_S = 15.0
"""Longest wait for a slot after its stream was closed; two chunks of prefill take 1 s on one thread."""
RELEASE_POLL_S = (0.005, 0.05)
"""First and longest pause between two looks at ``/slots``."""
WARM_UP_DEADLINE_S = 600.0

_SLOTS = TypeAdapter(list[Slot])


@dataclass(slots=True)
class _Flight:
    """One generation between its call and its end."""

    request: GenerationRequest
    tag: int
    give_up_at: float
    """Loop time."""
    scope: asyncio.Timeout
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    sent_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None
    answered: bool = False
    """The server has taken the request up."""
    aborted: bool = False
    closing: bool = False
    """Its stream is over, for whatever reason; nothing can hasten it any more."""
    finish: FinishReason | None = None
    cached_tokens: int = 0
    echo: SamplingParams | None = None
    landed: asyncio.Event = field(default_factory=asyncio.Event)

    def generation(self) -> Generation:
        sent_at = self.sent_at or 0.0
        first_at = self.first_token_at or sent_at
        return Generation(
            token_ids=self.token_ids,
            logprobs=self.logprobs,
            finish_reason=self.finish or FinishReason.ABORT,
            prompt_tokens=len(self.request.prompt_ids),
            cached_tokens=self.cached_tokens,
            weight_version=0,
            prefill_s=first_at - sent_at,
            decode_s=(self.last_token_at or first_at) - first_at,
            echoed_sampling=self.echo,
        )


class EmbeddedEngine(BasicEngine):
    """One llama.cpp server. ``slots`` is how many generations it runs at once."""

    capabilities = EngineCapabilities(json_schema=True, ignore_end=True, prefix_warmup=True)

    def __init__(self, url: str, *, slots: int, api_key: str | None = None) -> None:
        self.headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        """What the server wants to see in every request."""
        self._client = httpx.AsyncClient(
            base_url=url,
            headers=self.headers,
            timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),
            limits=httpx.Limits(max_connections=2 * slots + 8, max_keepalive_connections=0),
            trust_env=False,  # a proxy from the environment must not see loopback traffic
        )
        self._permits = asyncio.Semaphore(slots)
        self._flights: dict[str, _Flight] = {}
        self._tags = itertools.count(1)
        self._closed = False

    async def generate(
        self, request: GenerationRequest, on_tokens: Callable[[TokenChunk], None]
    ) -> Generation:
        """Stream one generation; see ``Engine.generate``."""
        flight = self._take_off(request)
        try:
            await self._fly(flight, on_tokens)
        finally:
            del self._flights[request.request_id]
            flight.landed.set()
        return flight.generation()

    async def abort(self, request_id: str) -> None:
        """End a running generation; returns when its slot is free. An unknown id is a no-op."""
        flight = self._flights.get(request_id)
        if flight is None:
            return
        if not flight.closing:
            flight.aborted = True
            self._hasten(flight)
        await flight.landed.wait()

    async def warm_prefix(self, token_ids: Sequence[int], session_id: str | None = None) -> CachedPrefix:
        """Compute a prefix into the cache; tells how much of it was there.

        The server cannot compute without sampling: one token is drawn and thrown away.
        """
        request = GenerationRequest(
            request_id=f"warm-{next(self._tags)}",
            prompt_ids=token_ids,
            max_new_tokens=1,
            sampling=SamplingParams(temperature=0.0),
            deadline_s=WARM_UP_DEADLINE_S,
            first_token_deadline_s=WARM_UP_DEADLINE_S,
        )
        generation = await self.generate(request, lambda chunk: None)
        return CachedPrefix(generation.cached_tokens)

    async def load(self) -> EngineLoad:
        """From ``/slots`` and ``/metrics``."""
        slots = await self.slots()
        metrics = _parse_metrics(await self._get("/metrics"))
        return EngineLoad(
            running=sum(slot.is_processing for slot in slots),
            waiting=int(metrics.pop("requests_deferred", 0.0)),
            kv_used_tokens=sum(slot.n_prompt_tokens for slot in slots),
            kv_capacity_tokens=sum(slot.n_ctx for slot in slots),
            extra=metrics,
        )

    async def slots(self) -> list[Slot]:
        """The server's slots, by way of its inference loop. Raises ``EngineUnavailable``."""
        body = await self._get("/slots")
        try:
            return _SLOTS.validate_json(body)
        except ValidationError as exc:
            raise EngineUnavailable(f"the engine described its slots as {body[:80]!r}") from exc

    async def health(self) -> None:
        """Asks the inference loop, not only the HTTP threads, which answer even when it hangs."""
        await self.slots()

    async def close(self) -> None:
        """Release the connections; the server goes on, generations raise ``EngineUnavailable``."""
        self._closed = True
        flights = list(self._flights.values())
        for flight in flights:
            self._hasten(flight)
        for flight in flights:
            await flight.landed.wait()
        await self._client.aclose()

    # ---------------------------------------------------------------------------- one generation

    def _hasten(self, flight: _Flight) -> None:
        """Let the flight's deadline pass now, unless it has passed or the stream is over already."""
        if not flight.closing and not flight.scope.expired():
            flight.scope.reschedule(asyncio.get_running_loop().time())

    def _take_off(self, request: GenerationRequest) -> _Flight:
        self._raise_if_closed()
        if request.max_new_tokens < 1:
            raise EngineRejected(f"max_new_tokens must be at least 1, not {request.max_new_tokens}")
        if request.json_schema is not None:
            check_schema(request.json_schema)
        if request.request_id in self._flights:
            raise EngineRejected(f"request {request.request_id!r} is in flight already")
        now = asyncio.get_running_loop().time()
        give_up_at = now + request.deadline_s
        scope = asyncio.timeout_at(min(give_up_at, now + request.first_token_deadline_s))
        flight = _Flight(request, next(self._tags), give_up_at, scope)
        self._flights[request.request_id] = flight
        return flight

    async def _fly(self, flight: _Flight, on_tokens: Callable[[TokenChunk], None]) -> None:
        permitted = False
        try:
            async with flight.scope:
                permitted = await self._permits.acquire()
                await self._stream(flight, on_tokens)
        except TimeoutError as exc:
            if flight.finish is None and self._closed:
                raise EngineUnavailable("the engine was closed") from exc
            if flight.finish is None and not flight.aborted:
                raise EngineTimeout(_describe_timeout(flight)) from exc
        except httpx.HTTPError as exc:
            raise error_of_transport(exc) from exc
        finally:
            flight.closing = True
            try:
                if flight.sent_at is not None and flight.finish is None:
                    await uninterrupted(self._until_slot_is_free(flight))
            finally:
                if permitted:
                    self._permits.release()

    async def _stream(self, flight: _Flight, on_tokens: Callable[[TokenChunk], None]) -> None:
        loop = asyncio.get_running_loop()
        flight.sent_at = loop.time()
        body = orjson.dumps(completion_body(flight.request, tag=flight.tag))
        headers = {"Content-Type": "application/json"}
        async with self._client.stream("POST", "/completion", content=body, headers=headers) as response:
            if response.status_code != httpx.codes.OK:
                raise error_of_status(response.status_code, await _head(response))
            async with aclosing(read_events(response.aiter_raw())) as events:
                async for event in events:
                    if self._take(flight, event, on_tokens, loop.time()):
                        return
        raise EngineUnavailable("the engine ended its stream before the generation")

    def _take(
        self, flight: _Flight, event: StreamEvent, on_tokens: Callable[[TokenChunk], None], now: float
    ) -> bool:
        """Account for one event; True where it was the last."""
        flight.answered = True
        if event.error is not None:
            raise error_of_event(event.error)
        if event.prompt_progress is not None:
            flight.cached_tokens = event.prompt_progress.cache
            return False
        token_ids, logprobs = checked_tokens(event, already=len(flight.token_ids))
        if token_ids:
            flight.token_ids += token_ids
            flight.logprobs += logprobs
            flight.last_token_at = now
            if flight.first_token_at is None:
                flight.first_token_at = now
            if not flight.aborted and not self._closed:
                flight.scope.reschedule(min(flight.give_up_at, now + flight.request.first_token_deadline_s))
            on_tokens(TokenChunk(token_ids, logprobs))
        if event.timings is not None:
            flight.cached_tokens = event.timings.cache_n
        if event.stop:
            flight.finish = finish_reason(event)
            flight.echo = echoed_sampling(event)
        return event.stop

    async def _until_slot_is_free(self, flight: _Flight) -> None:
        """Wait, within bounds, until the server has noticed that the stream was closed.

        A request that it had not yet taken up may appear in a slot a moment later, so it must be absent
        more than once.
        """
        pause_s, longest_s = RELEASE_POLL_S
        absences_wanted = 1 if flight.answered else 3
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT_S):
                while absences_wanted > 0:
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, longest_s)
                    absences_wanted -= not _holds(await self.slots(), flight.tag)
        except (TimeoutError, EngineUnavailable, EngineRejected):
            return  # dead or hung: whoever watches the process will say so

    def _raise_if_closed(self) -> None:
        if self._closed:
            raise EngineUnavailable("the engine is closed")

    async def _get(self, path: str) -> bytes:
        self._raise_if_closed()
        try:
            async with asyncio.timeout(CONTROL_TIMEOUT_S):
                response = await self._client.get(path)
        except TimeoutError as exc:
            raise EngineUnavailable(f"no answer to {path} within {CONTROL_TIMEOUT_S:g} s") from exc
        except httpx.HTTPError as exc:
            raise error_of_transport(exc) from exc
        if response.status_code != httpx.codes.OK:
            raise EngineUnavailable(f"HTTP {response.status_code} to {path}")
        return response.content


def _holds(slots: list[Slot], tag: int) -> bool:
    return any(
        slot.is_processing and slot.params is not None and slot.params.n_discard == tag for slot in slots
    )


def _describe_timeout(flight: _Flight) -> str:
    got = len(flight.token_ids)
    if asyncio.get_running_loop().time() >= flight.give_up_at:
        return f"the generation was not done after {flight.request.deadline_s:g} s ({got} tokens)"
    return f"no token for {flight.request.first_token_deadline_s:g} s (after {got} tokens)"


async def _head(response: httpx.Response, limit: int = 65_536) -> bytes:
    """The start of a body that may be endless."""
    body = b""
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) >= limit:
            break
    return body


def _parse_metrics(text: bytes) -> dict[str, float]:
    """Unlabelled Prometheus samples without their ``llamacpp:`` prefix."""
    metrics: dict[str, float] = {}
    for line in text.decode(errors="replace").splitlines():
        name, _, value = line.removeprefix("llamacpp:").partition(" ")
        if name and not name.startswith("#"):
            try:
                metrics[name] = float(value)
            except ValueError as exc:
                raise EngineUnavailable(f"the engine sent a metric that cannot be read: {line!r}") from exc
    return metrics
