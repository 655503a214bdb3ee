"""Connections on which nothing is going on: closed after a while, so that nobody can hold them for nothing.

A connection is busy while one of its requests is handled: its body arrives, it waits, or its answer is sent,
each within a bound of its own. Otherwise it is idle, also while the head of a request trickles in.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class IdleConnections:
    """Keeps account of one server's connections."""

    def __init__(self, idle_s: float) -> None:
        self.idle_s = idle_s
        self._busy: Counter[asyncio.BaseTransport] = Counter()
        self._idle_since: dict[asyncio.BaseTransport, float] = {}

    @contextmanager
    def handling(self, transport: asyncio.BaseTransport | None) -> Iterator[None]:
        """A request of this connection is handled inside."""
        if transport is None:  # closed already
            yield
            return
        self._busy[transport] += 1
        try:
            yield
        finally:
            self._busy[transport] -= 1
            if not self._busy[transport]:
                del self._busy[transport]
            self._idle_since.pop(transport, None)

    def close_idle(self, transports: Iterable[asyncio.Transport], now: float) -> int:
        """Cut those of the open connections that are idle for too long; returns their number."""
        still_idle: dict[asyncio.BaseTransport, float] = {}
        closed = 0
        for transport in transports:
            if transport in self._busy or transport.is_closing():
                continue
            since = self._idle_since.get(transport, now)
            if now - since >= self.idle_s:
                transport.abort()
                closed += 1
            else:
                still_idle[transport] = since
        self._idle_since = still_idle
        return closed
