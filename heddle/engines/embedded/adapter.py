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
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace

import httpx
import orjson
from pydantic import TypeAdapter, ValidationError

from heddle.agent.ports import Engine, EngineCapabilities, Generation, GenerationRequest, TokenChunk
from heddle.engines.basic import BasicEngine
from heddle.engines.embedded.flight import Flight, describe_timeout
from heddle.engines.embedded.protocol import (
    Slot,
    SlotRestored,
    SlotSaved,
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
from heddle.engines.embedded.transfer import HeldPrefix, SavedSlot, SlotExchange
from heddle.engines.uninterrupted import uninterrupted
from heddle.errors import EngineRejected, EngineTimeout, EngineUnavailable, UnsupportedByEngine
from heddle.types import CachedPrefix, EngineLoad, PrefixTransfer, SamplingParams

CONNECT_TIMEOUT_S = 10.0
CONTROL_TIMEOUT_S = 15.0
"""``/slots`` and ``/metrics`` are answered between two decoding steps: at most seconds under load."""
RELEASE_TIMEOUT_S = 15.0
"""Longest wait for a slot after its stream was closed; two chunks of prefill take 1 s on one thread."""
RELEASE_POLL_S = (0.005, 0.05)
"""First and longest pause between two looks at ``/slots``."""
WARM_UP_DEADLINE_S = 600.0
HOLD_DEADLINE_S = 60.0
"""To get a prefix that the server has into a slot, between the decoding steps of the others."""
SPARE_SLOTS = 1
"""Slots of a server beyond those of generations, so that a transfer finds one."""

_SLOTS = TypeAdapter(list[Slot])


class EmbeddedEngine(BasicEngine):
    """One llama.cpp server. ``slots`` is how many generations it runs at once.

    Engines with the same ``exchange`` can transfer prefixes; their servers have ``SPARE_SLOTS`` more.
    """

    capabilities = EngineCapabilities(json_schema=True, ignore_end=True, prefix_warmup=True)

    def __init__(
        self, url: str, *, slots: int, api_key: str | None = None, exchange: SlotExchange | None = None
    ) -> None:
        if exchange is not None:
            self.capabilities = replace(self.capabilities, kv_transfer=True)
        self.headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        """What the server wants to see in every request."""
        self._client = httpx.AsyncClient(
            base_url=url,
            headers=self.headers,
            timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),
            limits=httpx.Limits(max_connections=2 * slots + 8, max_keepalive_connections=0),
            trust_env=False,  # a proxy from the environment must not see loopback traffic
            verify=False,  # it talks without TLS; certificates would take megabytes and hold up the loop
        )
        self._permits = asyncio.Semaphore(slots)
        self._spare = asyncio.Semaphore(SPARE_SLOTS)
        self._slots = slots
        self.exchange = exchange
        """Where prefixes are handed over; ``None`` where they cannot be."""
        self._flights: dict[str, Flight] = {}
        self._tags = itertools.count(1)
        self._closed = False

    async def generate(
        self, request: GenerationRequest, on_tokens: Callable[[TokenChunk], None]
    ) -> Generation:
        """Stream one generation; see ``Engine.generate``."""
        flight = self._take_off(request)
        await self._until_landed(flight, self._permits, on_tokens)
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

    async def transfer(
        self, token_ids: Sequence[int], target: Engine, session_id: str | None = None
    ) -> PrefixTransfer:
        """See ``Engine.transfer``; neither server's generations wait for more than a copy of memory."""
        exchange = self.exchange
        if exchange is None or not isinstance(target, EmbeddedEngine) or target.exchange is not exchange:
            raise UnsupportedByEngine("the two engines share no place for saved slots")
        return await exchange.move(self, target, token_ids)

    async def hold(self, token_ids: Sequence[int], *, lacking_at_most: int) -> HeldPrefix:
        """See ``SlotServer.hold``; takes the spare slot, or waits for it."""
        request = GenerationRequest(
            request_id=f"hold-{next(self._tags)}",
            prompt_ids=token_ids,
            max_new_tokens=1,
            sampling=SamplingParams(temperature=0.0),
            deadline_s=HOLD_DEADLINE_S,
            first_token_deadline_s=HOLD_DEADLINE_S,
        )
        flight = self._take_off(request)
        flight.lacking_at_most = lacking_at_most
        await self._until_landed(flight, self._spare, lambda chunk: None)
        if flight.slot is None:
            raise EngineUnavailable("the engine did not say in which slot a generation ran")
        return HeldPrefix(flight.slot, flight.cached_tokens)

    async def save_slot(self, slot: int, name: str) -> SavedSlot:
        """See ``SlotServer.save_slot``."""
        saved = SlotSaved.model_validate_json(await self._slot_action(slot, "save", name))
        return SavedSlot(saved.n_saved, saved.n_written)

    async def restore_slot(self, slot: int, name: str) -> int:
        """See ``SlotServer.restore_slot``."""
        body = await self._slot_action(slot, "restore", name)
        return SlotRestored.model_validate_json(body).n_restored

    async def load(self) -> EngineLoad:
        """From ``/slots`` and ``/metrics``."""
        slots = await self.slots()
        metrics = _parse_metrics(await self._get("/metrics"))
        return EngineLoad(
            running=sum(slot.is_processing for slot in slots),
            waiting=int(metrics.pop("requests_deferred", 0.0)),
            kv_used_tokens=sum(slot.n_prompt_tokens for slot in slots),
            kv_capacity_tokens=sum(slot.n_ctx for slot in slots[: self._slots]),
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

    def _hasten(self, flight: Flight) -> None:
        """Let the flight's deadline pass now, unless it has passed or the stream is over already."""
        if not flight.closing and not flight.scope.expired():
            flight.scope.reschedule(asyncio.get_running_loop().time())

    def _take_off(self, request: GenerationRequest) -> Flight:
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
        flight = Flight(request, next(self._tags), give_up_at, scope)
        self._flights[request.request_id] = flight
        return flight

    async def _until_landed(
        self, flight: Flight, permits: asyncio.Semaphore, on_tokens: Callable[[TokenChunk], None]
    ) -> None:
        try:
            await self._fly(flight, permits, on_tokens)
        finally:
            del self._flights[flight.request.request_id]
            flight.landed.set()

    async def _fly(
        self, flight: Flight, permits: asyncio.Semaphore, on_tokens: Callable[[TokenChunk], None]
    ) -> None:
        permitted = False
        try:
            async with flight.scope:
                permitted = await permits.acquire()
                await self._stream(flight, on_tokens)
        except TimeoutError as exc:
            if flight.finish is None and self._closed:
                raise EngineUnavailable("the engine was closed") from exc
            if flight.finish is None and not flight.aborted:
                raise EngineTimeout(describe_timeout(flight)) from exc
        except httpx.HTTPError as exc:
            raise error_of_transport(exc) from exc
        finally:
            flight.closing = True
            try:
                if flight.sent_at is not None and flight.finish is None:
                    await uninterrupted(self._until_slot_is_free(flight))
            finally:
                if permitted:
                    permits.release()

    async def _stream(self, flight: Flight, on_tokens: Callable[[TokenChunk], None]) -> None:
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
        self, flight: Flight, event: StreamEvent, on_tokens: Callable[[TokenChunk], None], now: float
    ) -> bool:
        """Account for one event; True where it was the last."""
        flight.answered = True
        if event.error is not None:
            raise error_of_event(event.error)
        if event.prompt_progress is not None:
            flight.cached_tokens = event.prompt_progress.cache
            _check_lacking(flight)
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
            flight.slot = event.id_slot
            flight.echo = echoed_sampling(event)
        return event.stop

    async def _until_slot_is_free(self, flight: Flight) -> None:
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
        response = await self._request("GET", path)
        if response.status_code != httpx.codes.OK:
            raise EngineUnavailable(f"HTTP {response.status_code} to {path}")
        return response.content

    async def _slot_action(self, slot: int, action: str, name: str) -> bytes:
        response = await self._request("POST", f"/slots/{slot}?action={action}", {"filename": name})
        if response.status_code != httpx.codes.OK:
            raise error_of_status(response.status_code, response.content)
        return response.content

    async def _request(self, method: str, path: str, body: Mapping[str, str] | None = None) -> httpx.Response:
        self._raise_if_closed()
        try:
            async with asyncio.timeout(CONTROL_TIMEOUT_S):
                return await self._client.request(method, path, json=body)
        except TimeoutError as exc:
            raise EngineUnavailable(f"no answer to {path} within {CONTROL_TIMEOUT_S:g} s") from exc
        except httpx.HTTPError as exc:
            raise error_of_transport(exc) from exc


def _check_lacking(flight: Flight) -> None:
    lacking = len(flight.request.prompt_ids) - flight.cached_tokens
    if flight.lacking_at_most is not None and lacking > flight.lacking_at_most:
        raise EngineRejected(
            f"the engine lacks {lacking} of the prefix's {len(flight.request.prompt_ids)} tokens"
        )


def _holds(slots: list[Slot], tag: int) -> bool:
    return any(
        slot.is_processing and slot.params is not None and slot.params.n_discard == tag for slot in slots
    )


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
