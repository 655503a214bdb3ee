"""Trusted, fast, pure functions as a tool backend, such as a BM25 look-up.

They run in threads of this process: no isolation, no limit but the deadline. A thread cannot be ended
from outside, so a handler that overruns is *abandoned*: its call ends in time, its thread stays occupied
until the handler returns. Never put model-written code here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from heddle.agent.ports import ToolInvocation
from heddle.errors import ToolBackendError
from heddle.tools.ports import BackendResult, ToolOutcome
from heddle.types import Json


class ToolInputError(Exception):
    """Raised by a handler: the arguments make no sense. The model reads the message."""


class InProcessBackend:
    """Calls ``handler(payload)`` in one of ``threads`` threads; its text is the observation."""

    def __init__(self, name: str, handler: Callable[[Mapping[str, Json]], str], *, threads: int = 4) -> None:
        self._name = name
        self._handler = handler
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"tool-{name}")
        self._closed = False

    @property
    def name(self) -> str:
        """What ``ToolInvocation.backend`` calls it."""
        return self._name

    @property
    def repeatable(self) -> bool:
        """Pure functions are."""
        return True

    async def invoke(self, invocation: ToolInvocation, deadline: float) -> BackendResult:
        """Run the handler. ``ToolInputError`` is an observation; anything else that it raises is a
        ``ToolBackendError``, because a trusted handler that fails is a fault of the installation."""
        if self._closed:
            raise ToolBackendError(f"tool backend {self._name!r} is closed")
        began = time.monotonic()
        loop = asyncio.get_running_loop()
        call = loop.run_in_executor(self._pool, self._timed, invocation.payload)
        try:
            async with asyncio.timeout(max(0.0, deadline - began)):
                output, outcome, entered = await call
        except TimeoutError:
            note = f"[ended: limit of {deadline - began:.3g} s]"
            return BackendResult(note, ToolOutcome.TIMED_OUT, 0.0, time.monotonic() - began)
        return BackendResult(output, outcome, entered - began, time.monotonic() - entered)

    def _timed(self, payload: Mapping[str, Json]) -> tuple[str, ToolOutcome, float]:
        entered = time.monotonic()
        try:
            return self._handler(payload), ToolOutcome.OK, entered
        except ToolInputError as exc:
            return str(exc), ToolOutcome.ERROR, entered
        except Exception as exc:  # the boundary: whatever a handler raises is named as a backend's failure
            raise ToolBackendError(f"tool {self._name!r} failed: {exc!r}") from exc

    async def prewarm(self, n: int) -> None:
        """Nothing to do: threads start in microseconds."""

    async def close(self) -> None:
        """Take no more calls; does not wait for abandoned handlers."""
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)
