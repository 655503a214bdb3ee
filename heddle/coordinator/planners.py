"""Machine code of the planners: compiled or loaded in a thread, and the first batch waits for it.

Compiling takes seconds. In the midst of the first decision it would stop the event loop for as long, and with
it every answer, every deadline and every token that streams in.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import structlog

log = structlog.get_logger(__name__)


class Planners:
    """Ready once their machine code is there."""

    def __init__(self, load: Callable[[], None] | None) -> None:
        """``load`` blocks; ``None`` where nothing is compiled."""
        self._load = load
        self._loaded = asyncio.Event()
        if load is None:
            self._loaded.set()

    async def run(self) -> None:
        """Load, once."""
        if self._load is None:
            return
        began = time.monotonic()
        await asyncio.to_thread(self._load)
        log.info("planners.loaded", seconds=round(time.monotonic() - began, 3))
        self._loaded.set()

    async def ready(self) -> None:
        """Wait until a plan can be made; ``run`` ends, or the coordinator does."""
        if not self._loaded.is_set():
            log.info("planners.awaited", detail="the first batch waits until its planner is compiled")
            await self._loaded.wait()
