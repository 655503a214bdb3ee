"""An honest tool backend in memory, for tests, examples and load without processes.

It keeps the whole contract: deadlines, cancellation, infrastructure failures, closing. It costs a few
microseconds a call.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

from heddle.agent.ports import ToolInvocation
from heddle.errors import ToolBackendError
from heddle.tools.ports import BackendResult, ToolOutcome


def fake_result(
    output: str = "",
    outcome: ToolOutcome = ToolOutcome.OK,
    *,
    cold_start_s: float = 0.0,
    run_s: float = 0.0,
) -> BackendResult:
    """A result to be given by a fake; ``cold_start_s + run_s`` is how long it takes."""
    return BackendResult(output, outcome, cold_start_s, run_s)


class FakeToolBackend:
    """Answers every call with ``respond(invocation)``, after the time that the answer says it takes.

    ``respond`` may raise ``ToolBackendError`` to inject a failure of the infrastructure.
    """

    def __init__(
        self,
        respond: Callable[[ToolInvocation], BackendResult] = lambda invocation: fake_result("ok"),
        *,
        name: str = "python",
        remember: bool = True,
        repeatable: bool = True,
    ) -> None:
        self._name = name
        self._respond = respond
        self._remember = remember
        self._repeatable = repeatable
        self._closed = False
        self.running = 0
        self.peak_running = 0
        self.invocations: list[ToolInvocation] = []
        """Every call that was begun, in order; empty where it is not to ``remember``."""
        self.prewarmed = 0

    @property
    def name(self) -> str:
        """What ``ToolInvocation.backend`` calls it."""
        return self._name

    @property
    def repeatable(self) -> bool:
        """As it was told."""
        return self._repeatable

    async def invoke(self, invocation: ToolInvocation, deadline: float) -> BackendResult:
        """The answer, or ``timed_out`` at the deadline where the answer would take longer."""
        if self._closed:
            raise ToolBackendError(f"tool backend {self._name!r} is closed")
        if self._remember:
            self.invocations.append(invocation)
        result = self._respond(invocation)
        takes_s = result.cold_start_s + result.run_s
        if takes_s <= 0.0:
            return result
        return await self._after(takes_s, result, deadline)

    async def _after(self, takes_s: float, result: BackendResult, deadline: float) -> BackendResult:
        began = time.monotonic()
        self.running += 1
        self.peak_running = max(self.peak_running, self.running)
        try:
            await asyncio.sleep(min(takes_s, max(0.0, deadline - began)))
        finally:
            self.running -= 1
        took_s = time.monotonic() - began
        cold_start_s = min(result.cold_start_s, took_s)
        outcome = ToolOutcome.TIMED_OUT if began + takes_s > deadline else result.outcome
        return replace(result, outcome=outcome, cold_start_s=cold_start_s, run_s=took_s - cold_start_s)

    async def prewarm(self, n: int) -> None:
        """Count the hints."""
        self.prewarmed += n

    async def close(self) -> None:
        """Refuse further calls; running ones end at their own time."""
        self._closed = True
