"""Tool calls that must not be delivered twice: written down before they start, and again when they end.

A backend says whether its calls may be repeated (``ToolBackend.repeatable``). Those that may are simply run
again where a crash left it open whether they ran. The others are known by their key after a crash: one that
ended gives its result, one of which only the start is known is not run again, and its result says so.
"""

from __future__ import annotations

from typing import Protocol

from heddle.agent.invoker import ToolRunner
from heddle.agent.journal import CALL_FINISHED, CALL_STARTED, FinishedCall, StartedCall, TrajectoryJournal
from heddle.agent.ports import ToolInvocation, ToolResult

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

    def __init__(self, tools: ToolExecutor, journal: TrajectoryJournal) -> None:
        self._tools = tools
        self._journal = journal
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
            return await self._tools.invoke(invocation)
        known = self._known.get(invocation.key)
        if known is not None:
            return known
        await self._journal.append(CALL_STARTED, StartedCall(invocation.key))
        result = await self._tools.invoke(invocation)
        await self._journal.append(CALL_FINISHED, FinishedCall(invocation.key, result))
        return result
