"""Tool calls and their repetition: which may be delivered again, and which must not.

A backend says whether its calls may be repeated (``ToolBackend.repeatable``). Those that may are run again
where a crash left it open whether they ran, and a few times where their backend fails. The others are written
down before they start, and again when they end. They are known by their key after a crash: one that ended
gives its result, one of which only the start is known is not run again, and its result says so.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Protocol

from heddle.agent.invoker import ToolRunner
from heddle.agent.journal import CALL_FINISHED, CALL_STARTED, FinishedCall, StartedCall, TrajectoryJournal
from heddle.agent.ports import ToolInvocation, ToolResult
from heddle.errors import ToolBackendError, ToolRefused

RETRY_BACKOFF_S = 0.1
"""First pause after a backend failed; doubles."""

MAX_BACKOFF_S = 5.0

UNRESOLVED = ToolResult(
    "[unresolved: this call may have run before an interruption and was not run again]",
    ok=False,
    outcome="unresolved",
    queue_s=0.0,
    cold_start_s=0.0,
    run_s=0.0,
)
"""What the model reads of a call that may have been delivered."""


class ToolExecutor(ToolRunner, Protocol):
    """The Tool Manager, as this guard needs it."""

    def repeatable(self, backend: str) -> bool:
        """Whether calls of this backend may be delivered more than once."""
        ...


class CallGuard:
    """Implements ``ToolRunner`` for one trajectory."""

    def __init__(self, tools: ToolExecutor, journal: TrajectoryJournal, max_retries: int) -> None:
        self._tools = tools
        self._journal = journal
        self._max_retries = max_retries
        self._known: dict[str, ToolResult] = {}
        """Calls of an earlier process, by key."""

    def restore_started(self, call: StartedCall) -> None:
        """An earlier process was about to run this call."""
        self._known.setdefault(call.key, UNRESOLVED)

    def restore_finished(self, call: FinishedCall) -> None:
        """An earlier process ran this call to its end."""
        self._known[call.key] = call.result

    def forget(self) -> None:
        """Their step is observed: they cannot be asked for again."""
        self._known.clear()

    async def invoke(self, invocation: ToolInvocation) -> ToolResult:
        """Run a call at most once, if its backend demands it. Raises ``ToolBackendError``, ``StoreError``."""
        if self._tools.repeatable(invocation.backend):
            return await self._deliver_until_answered(invocation)
        known = self._known.get(invocation.key)
        if known is not None:
            return known
        await self._journal.append(CALL_STARTED, StartedCall(invocation.key))
        result = await self._tools.invoke(invocation)
        await self._journal.append(CALL_FINISHED, FinishedCall(invocation.key, result))
        return result

    async def _deliver_until_answered(self, invocation: ToolInvocation) -> ToolResult:
        """What came to nothing counts as time in the queue. Raises ``ToolBackendError`` in the end."""
        arrived = time.monotonic()
        while True:
            delivered = time.monotonic()
            try:
                result = await self._tools.invoke(invocation)
            except ToolRefused:
                raise
            except ToolBackendError:
                if invocation.retry >= self._max_retries:
                    raise
            else:
                if not invocation.retry:
                    return result
                lost_s = delivered - arrived
                return replace(result, queue_s=result.queue_s + lost_s, retries=invocation.retry)
            await asyncio.sleep(min(MAX_BACKOFF_S, RETRY_BACKOFF_S * 2**invocation.retry))
            invocation = replace(invocation, retry=invocation.retry + 1)
