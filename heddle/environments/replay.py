"""``replay``: recorded lengths and tool times, generated and waited for again; the text means nothing.

For benchmarks of scheduling on live engines: a step samples exactly ``output_tokens`` (the end of the turn is
suppressed), then a tool sleeps for ``tool_seconds`` and an observation of about ``observation_tokens``
follows. No reward: there is nothing to judge. Its trajectories tell the control plane their length, which the
predictors ``oracle`` and ``noisy_oracle`` read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

from pydantic import Field

from heddle.agent.ports import (
    EnvironmentStart,
    Episode,
    Replay,
    Reward,
    StepOutcome,
    ToolInvocation,
    ToolInvoker,
    Turn,
)
from heddle.environments.base import TaskModel, ToolAnswer, ToolContext, ToolEnvironment, parse_task
from heddle.errors import ToolBackendError
from heddle.tools.ports import BackendResult, ToolOutcome
from heddle.types import Json, Message, StopReason, ToolCall, ToolSpec

BACKEND = "replay.sleep"

MOST_FILLER_TOKENS = 100
"""Of an observation: longer ones would be shortened."""

_TIMEOUT_SLACK_S = 60.0
_FILLER = " and"
"""One token in the vocabularies of most models."""

_WAIT = ToolSpec(
    "wait",
    "Waits.",
    {
        "type": "object",
        "properties": {"seconds": {"type": "number"}, "observation_tokens": {"type": "integer"}},
        "required": ["seconds", "observation_tokens"],
        "additionalProperties": False,
    },
)


class ReplayStep(TaskModel):
    """One recorded step; what follows the tool of the last step is nothing."""

    output_tokens: int = Field(ge=1)
    tool_seconds: float = Field(default=0.0, ge=0.0)
    observation_tokens: int = Field(default=4, ge=0, le=MOST_FILLER_TOKENS)


class ReplayTask(TaskModel):
    """A recorded trajectory."""

    steps: list[ReplayStep] = Field(min_length=1)
    prompt_tokens: int = Field(default=8, ge=1)
    """About so many of filler, besides the chat template."""


class ReplayEnvironment(ToolEnvironment):
    """Says nothing, waits, and ends when its recording does."""

    def __init__(self) -> None:
        super().__init__("replay", (_WAIT,))

    def backends(self) -> Sequence[SleepBackend]:
        return (SleepBackend(),)

    def opening(self, task: Mapping[str, Json]) -> tuple[Message, ...]:
        return (Message("user", "Go on" + _FILLER * parse_task(ReplayTask, task).prompt_tokens),)

    def reset(self, task: Mapping[str, Json]) -> EnvironmentStart:
        """The tool is not shown to the model, which does not choose it."""
        steps = parse_task(ReplayTask, task).steps
        calls: list[tuple[ToolCall, ...]] = [(_call(index, step),) for index, step in enumerate(steps[:-1])]
        replay = Replay(tuple(step.output_tokens for step in steps), (*calls, ()))
        return EnvironmentStart(self.opening(task), tools=(), replay=replay)

    async def step(
        self, task: Mapping[str, Json], messages: Sequence[Message], turn: Turn, tools: ToolInvoker
    ) -> StepOutcome:
        """A turn without a call is the last."""
        if not turn.calls:
            return StepOutcome(stop_reason=StopReason.COMPLETED)
        return await super().step(task, messages, turn, tools)

    async def run_tool(self, call: ToolCall, context: ToolContext) -> ToolAnswer:
        seconds = call.arguments["seconds"]
        timeout_s = _TIMEOUT_SLACK_S + (seconds if isinstance(seconds, int | float) else 0.0)
        result = await context.tools.invoke(call, backend=BACKEND, timeout_s=timeout_s)
        return ToolAnswer(result.output)

    async def reward(self, episode: Episode, tools: ToolInvoker) -> Reward | None:
        return None


class SleepBackend:
    """Sleeps for as long as it is told, in no process and no thread."""

    name = BACKEND
    repeatable = True

    def __init__(self) -> None:
        self._closed = False

    async def invoke(self, invocation: ToolInvocation, deadline: float) -> BackendResult:
        """The filler of an observation. Raises ``ToolBackendError`` for a foreign payload."""
        if self._closed:
            raise ToolBackendError(f"tool backend {self.name!r} is closed")
        match invocation.payload:
            case {"seconds": int() | float() as seconds, "observation_tokens": int(tokens)}:
                pass
            case _:
                raise ToolBackendError(f"{self.name} cannot read {dict(invocation.payload)}")
        began = time.monotonic()
        await asyncio.sleep(min(seconds, max(0.0, deadline - began)))
        late = began + seconds > deadline
        outcome = ToolOutcome.TIMED_OUT if late else ToolOutcome.OK
        return BackendResult(_FILLER * tokens, outcome, 0.0, time.monotonic() - began)

    async def prewarm(self, n: int) -> None:
        """Nothing to do."""

    async def close(self) -> None:
        """Take no more calls."""
        self._closed = True


def _call(index: int, step: ReplayStep) -> ToolCall:
    arguments: dict[str, Json] = {
        "seconds": step.tool_seconds,
        "observation_tokens": step.observation_tokens,
    }
    return ToolCall(f"call_{index}_0", _WAIT.name, arguments)
