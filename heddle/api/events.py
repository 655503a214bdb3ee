"""``GET /v1/events``: what happens, as server-sent events.

The stream pulls: the next event is taken from the service only when the client took the one before, so
a slow client costs no memory here. One that takes nothing for ``write_s`` is cut off; it comes
back with ``Last-Event-ID`` and learns from a ``gap`` event what the service no longer has.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import orjson
from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from heddle.api.bodies import read_query
from heddle.api.context import ApiContext
from heddle.api.replies import prepare_or_drop, write_or_drop
from heddle.api.routing import Answer, Route
from heddle.api.service import ServerEvent
from heddle.errors import InvalidRequest

EVENT_STREAM = "text/event-stream"

RECONNECT_MS = 2000
"""What a browser waits before it connects again."""


class EventsQuery(BaseModel):
    """The query of ``GET /v1/events``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    after: int | None = Field(
        default=None,
        ge=0,
        lt=2**63,
        description="Id of the last event seen; the header Last-Event-ID goes before it.",
    )


class EventRoutes:
    """The handler of the stream."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    def routes(self) -> tuple[Route, ...]:
        """The one operation on events."""
        answer = Answer("The stream; each `data` is the event's.", None, (EVENT_STREAM,))
        summary = "Everything that happens, as server-sent events; goes on after Last-Event-ID."
        return (Route("GET", "/v1/events", self.stream, summary, {200: answer}, "events", query=EventsQuery),)

    async def stream(self, request: web.Request) -> web.StreamResponse:
        after = _last_event_id(request)
        events = self._context.service.events(after)
        response = web.StreamResponse(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        response.content_type = EVENT_STREAM
        try:
            await prepare_or_drop(request, response)
            await self._send(request, response, b"retry: %d\n\n" % RECONNECT_MS)
            await self._pump(request, response, events)
        finally:
            if isinstance(events, AsyncGenerator):
                await events.aclose()
        return response

    async def _pump(
        self, request: web.Request, response: web.StreamResponse, events: AsyncIterator[ServerEvent]
    ) -> None:
        """Pass events on, with a heartbeat in every silence, until the server stops or they end."""
        following = asyncio.create_task(_next(events))
        stop = asyncio.create_task(self._context.stopping.wait())
        try:
            while not stop.done():
                await asyncio.wait(
                    {following, stop},
                    timeout=self._context.timing.heartbeat_s,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if not following.done():
                    if not stop.done():
                        await self._send(request, response, b": heartbeat\n\n")
                    continue
                event = following.result()
                if event is None:
                    return
                following = asyncio.create_task(_next(events))
                await self._send(request, response, _encode(event))
        finally:
            following.cancel()
            stop.cancel()
            await asyncio.gather(following, stop, return_exceptions=True)

    async def _send(self, request: web.Request, response: web.StreamResponse, data: bytes) -> None:
        await write_or_drop(request, response, data, self._context.timing)


async def _next(events: AsyncIterator[ServerEvent]) -> ServerEvent | None:
    return await anext(events, None)


def _encode(event: ServerEvent) -> bytes:
    data = orjson.dumps(event.data)
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.event_id, event.name.encode(), data)


def _last_event_id(request: web.Request) -> int | None:
    query = read_query(request, EventsQuery)
    header = request.headers.get("Last-Event-ID")
    if header is None:
        return query.after
    if not (header.isascii() and header.isdigit() and len(header) < 19):
        raise InvalidRequest("an event id is a number", path="header.Last-Event-ID", code="invalid_value")
    return int(header)
