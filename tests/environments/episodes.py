"""What the tests of environments share: a tool runner without a manager, and builders of episodes."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count

from heddle.agent.invoker import RecordingInvoker, ToolRunner
from heddle.agent.ports import Episode, StepOutcome, ToolInvocation, ToolResult, Turn
from heddle.environments.base import ToolEnvironment
from heddle.records import ToolCallRecord
from heddle.tools.ports import ToolBackend
from heddle.types import Json, Message, StopReason, ToolCall, TrajectoryId

RUN_TIMEOUT_S = 20.0
"""Far above what any program here needs; only a hang meets it."""

Responder = Callable[[ToolInvocation], ToolResult]


def tool_result(output: str, outcome: str = "ok") -> ToolResult:
    """A result without latencies."""
    return ToolResult(output, ok=outcome == "ok", outcome=outcome, queue_s=0.0, cold_start_s=0.0, run_s=0.0)


class PlainRunner:
    """Runs ``python`` in a plain subprocess, everything else on the environment's own backends."""

    def __init__(self, backends: Sequence[ToolBackend] = ()) -> None:
        self._backends = {backend.name: backend for backend in backends}

    async def invoke(self, invocation: ToolInvocation) -> ToolResult:
        if invocation.backend == "python":
            return await run_program(str(invocation.payload["code"]))
        deadline = time.monotonic() + RUN_TIMEOUT_S
        result = await self._backends[invocation.backend].invoke(invocation, deadline)
        return tool_result(result.output, result.outcome.value)


class ScriptedRunner:
    """Answers every invocation by a function, and remembers them."""

    def __init__(self, respond: Responder) -> None:
        self._respond = respond
        self.invocations: list[ToolInvocation] = []

    async def invoke(self, invocation: ToolInvocation) -> ToolResult:
        self.invocations.append(invocation)
        return self._respond(invocation)


async def run_program(program: str) -> ToolResult:
    """A program's output, standard error included, as the sandbox would give it."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        "-c",
        program,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    reading = asyncio.create_task(process.stdout.read())
    try:
        await asyncio.wait_for(process.wait(), RUN_TIMEOUT_S)
        outcome = "ok" if process.returncode == 0 else "error"
    except TimeoutError:
        process.kill()
        await process.wait()
        outcome = "timed_out"
    return tool_result((await reading).decode(errors="replace"), outcome)


class Play:
    """One episode, driven by hand: say what the model does, see what the environment answers."""

    def __init__(self, environment: ToolEnvironment, task: Mapping[str, Json], runner: ToolRunner) -> None:
        self.environment = environment
        self.task = dict(task)
        self.messages = list(environment.reset(task).messages)
        self.records: list[ToolCallRecord] = []
        self.steps = 0
        self._ids = count()
        self._invoker = RecordingInvoker(runner, TrajectoryId("t"), 0, "0")

    async def turn(
        self,
        *calls: tuple[str, dict[str, Json]],
        text: str = "",
        errors: Sequence[str] = (),
        truncated: bool = False,
    ) -> StepOutcome:
        """One step of the model; its messages and the observations join the transcript."""
        made = tuple(ToolCall(f"call_{next(self._ids)}", name, arguments) for name, arguments in calls)
        self.messages.append(Message("assistant", text, tool_calls=made))
        turn = Turn(self.steps, text, text, made, tuple(errors), truncated)
        outcome = await self.environment.step(self.task, tuple(self.messages), turn, self._invoker)
        self.steps += 1
        if outcome.stop_reason is None:  # the agent loop appends nothing after the end
            self.messages.extend(outcome.messages)
        return outcome

    def episode(self, stop_reason: StopReason) -> Episode:
        """The episode so far, as if it had ended for this reason."""
        records = tuple(self._invoker.records)
        return Episode(self.task, tuple(self.messages), records, stop_reason, self.steps)

    async def reward(self, stop_reason: StopReason) -> tuple[float, Mapping[str, Json]]:
        """Value and info of the reward at this end."""
        reward = await self.environment.reward(self.episode(stop_reason), self._invoker)
        assert reward is not None
        return reward.value, reward.info

    @property
    def rejected(self) -> int:
        """Calls that the environment refused to run."""
        return self._invoker.rejected
