"""Server-sent events: a bounded memory of what happened, and everybody who listens to it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import NamedTuple

import orjson

from heddle.api.service import ServerEvent
from heddle.types import Json

BUFFERED_EVENTS = 8192
"""What a client that reconnects can still catch up on; older events show as one ``gap``."""


class Pulse:
    """Wakes everybody who waits, each time it is fired. Cheap where nobody waits."""

    __slots__ = ("_waiters", "fired")

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()
        self.fired = 0
        """How often; read it before looking at what the pulse announces, and wait ``since`` then."""

    def fire(self) -> None:
        self.fired += 1
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    async def wait(self, timeout_s: float | None = None, *, since: int | None = None) -> bool:
        """Returns False where ``timeout_s`` passed first; at once where it was fired ``since`` that count."""
        if since is not None and self.fired != since:
            return True
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            async with asyncio.timeout(timeout_s):
                await waiter
            return True
        except TimeoutError:
            return False
        finally:
            self._waiters.discard(waiter)


class _Kept(NamedTuple):
    """An event as text, which takes less than its objects; thousands are kept."""

    event_id: int
    name: str
    data: str

    def event(self) -> ServerEvent:
        return ServerEvent(self.event_id, self.name, orjson.loads(self.data))


class Broadcaster:
    """Numbers events from 1 and keeps the newest."""

    def __init__(self, capacity: int = BUFFERED_EVENTS) -> None:
        self._events: deque[_Kept] = deque(maxlen=capacity)
        self._next_id = 1
        self._pulse = Pulse()

    def publish(self, name: str, data: Mapping[str, Json]) -> None:
        text = orjson.dumps(data).decode()  # its bytes would hold on to a buffer of kilobytes
        self._events.append(_Kept(self._next_id, name, text))
        self._next_id += 1
        self._pulse.fire()

    async def listen(self, after_id: int | None) -> AsyncIterator[ServerEvent]:
        """From ``after_id`` (exclusive), or from now on. Ends only by being closed.

        An id that was never given out here is one of an earlier process: everything since the start is new.
        """
        newest = self._next_id - 1
        last = newest if after_id is None else after_id if after_id <= newest else 0
        while True:
            oldest = self._events[0].event_id if self._events else self._next_id
            if last + 1 < oldest:
                missed: dict[str, Json] = {"first_missing": last + 1, "last_missing": oldest - 1}
                last = oldest - 1
                yield ServerEvent(last, "gap", missed)
            fresh = self._after(last)
            for event in fresh:
                last = event.event_id
                yield event
            if not fresh:
                await self._pulse.wait()

    def _after(self, last: int) -> list[ServerEvent]:
        count = self._next_id - 1 - last
        if count <= 0:
            return []
        start = max(0, len(self._events) - count)
        return [self._events[i].event() for i in range(start, len(self._events))]
