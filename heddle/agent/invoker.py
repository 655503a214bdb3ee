"""Tools on behalf of one trajectory: every call goes through here, and is recorded here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Protocol

from heddle.agent.ports import ToolInvocation, ToolResult
from heddle.records import ToolCallRecord
from heddle.types import Json, ToolCall, TrajectoryId


class ToolRunner(Protocol):
    """The Tool Manager, as the agent loop needs it."""

    async def invoke(self, invocation: ToolInvocation) -> ToolResult: ...


class RecordingInvoker:
    """Implements ``ToolInvoker`` for one step (or one reward); keeps what was called and what came."""

    __slots__ = ("_attempt", "_made", "_runner", "_scope", "_trajectory_id", "records", "rejected", "results")

    def __init__(self, runner: ToolRunner, trajectory_id: TrajectoryId, attempt: int, scope: str) -> None:
        """``scope`` names the step (or the reward) within the trajectory."""
        self._runner = runner
        self._trajectory_id = trajectory_id
        self._attempt = attempt
        self._scope = scope
        self._made: Counter[str] = Counter()
        self.records: list[ToolCallRecord] = []
        self.results: list[ToolResult] = []
        self.rejected = 0

    async def invoke(
        self,
        call: ToolCall,
        *,
        backend: str,
        payload: Mapping[str, Json] | None = None,
        timeout_s: float | None = None,
    ) -> ToolResult:
        result = await self._runner.invoke(
            ToolInvocation(
                call_id=call.call_id,
                trajectory_id=self._trajectory_id,
                backend=backend,
                name=call.name,
                payload=call.arguments if payload is None else payload,
                timeout_s=timeout_s,
                attempt=self._attempt,
                key=self._key(call),
            )
        )
        self._record(call, result)
        return result

    def reject(self, call: ToolCall, message: str) -> ToolResult:
        result = ToolResult(message, ok=False, outcome="invalid", queue_s=0.0, cold_start_s=0.0, run_s=0.0)
        self.rejected += 1
        self._record(call, result)
        return result

    def _key(self, call: ToolCall) -> str:
        """Equal when the same step is run again, if its environment makes its calls in the same order."""
        number = self._made[call.call_id]
        self._made[call.call_id] += 1
        return f"{self._trajectory_id}/{self._scope}/{call.call_id}/{number}"

    def _record(self, call: ToolCall, result: ToolResult) -> None:
        self.results.append(result)
        self.records.append(
            ToolCallRecord(
                call_id=call.call_id,
                name=call.name,
                arguments=call.arguments,
                result=result.output,
                ok=result.ok,
                outcome=result.outcome,
                queue_s=result.queue_s,
                cold_start_s=result.cold_start_s,
                run_s=result.run_s,
                retries=result.retries,
            )
        )
