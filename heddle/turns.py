"""Turns of the event loop, handed out a few at a time.

Work that is cut into slices holds the loop up for one slice a turn, but a hundred such works at once hold it
up for a hundred. Here they line up instead: a turn of the loop serves a few slices, of those who asked first,
and everything else that is ready gets the loop in between.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Turns:
    """Used on one event loop."""

    __slots__ = ("_serving", "_waiting", "_width")

    def __init__(self, width: int = 1) -> None:
        """``width``: slices served in one turn of the loop, at least 1."""
        self._width = width
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._serving = False

    async def next(self) -> None:
        """Returns in a turn of the loop that serves few others who asked here."""
        loop = asyncio.get_running_loop()
        ticket = loop.create_future()
        self._waiting.append(ticket)
        if not self._serving:
            self._serving = True
            loop.call_soon(self._serve, loop)
        await ticket

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        """The next in line run in the next turn of the loop, and only then are those after them called."""
        served = 0
        while self._waiting and served < self._width:
            ticket = self._waiting.popleft()
            if not ticket.done():  # it was not cancelled meanwhile
                ticket.set_result(None)
                served += 1
        if served:
            loop.call_soon(self._serve, loop)
        else:
            self._serving = False
