"""A whole coordinator on a fake engine: real control plane, agent loops, store and event log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import numpy as np

from heddle.agent.ports import (
    Episode,
    GenerationRequest,
    Reward,
    StepOutcome,
    ToolInvocation,
    ToolInvoker,
    Turn,
)
from heddle.api.schemas import BatchRequest
from heddle.app import open_coordinator
from heddle.config import HeddleConfig, parse_config
from heddle.coordinator.assembly import EngineKit
from heddle.coordinator.service import Coordinator
from heddle.engines.fake import FakeEngine, FakeFaults, FakeLauncher, FakeModel
from heddle.environments.base import ToolAnswer, ToolContext, ToolEnvironment
from heddle.errors import ToolBackendError
from heddle.records import Trajectory, decode_trajectory
from heddle.text.byte_tokenizer import TURN_END, TURN_START, ByteTokenizer
from heddle.tools.fake import FakeToolBackend, fake_result
from heddle.tools.ports import BackendResult, ToolBackend
from heddle.types import Json, Message, StopReason, ToolCall, ToolSpec

TOKENIZER = ByteTokenizer()
_TEXT: dict[str, Json] = {"type": "string"}


def call_text(name: str, text: str = "hello") -> str:
    """A well-formed Hermes call."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{"text": "{text}"}}}}\n</tool_call>'


def turn_ids(text: str) -> list[int]:
    """What a model samples that says ``text`` and ends its turn."""
    return [*TOKENIZER.encode(text), TURN_END]


def step_of(request: GenerationRequest) -> int:
    """Which step a request belongs to: assistant turns already closed by an observation."""
    opening = [TURN_START, *b"assistant\n"]
    ids = list(request.prompt_ids)
    return sum(ids[i : i + len(opening)] == opening for i in range(len(ids))) - 1


def script(turn: Callable[[int], str]) -> Callable[[GenerationRequest], Sequence[int]]:
    """A model that says ``turn(step_index)``, and goes on where a request already carries its beginning."""

    def write(request: GenerationRequest) -> Sequence[int]:
        ids = list(request.prompt_ids)
        opening = len(ids) - ids[::-1].index(TURN_START) + len(b"assistant\n")
        return turn_ids(turn(step_of(request)))[len(ids) - opening :]

    return write


class ScriptedEnvironment(ToolEnvironment):
    """Tools: ``echo`` says it again, ``stop`` ends the task, ``broken`` has a broken backend, ``raise``
    is a bug of the environment. The reward is the number of steps."""

    def __init__(self) -> None:
        parameters: dict[str, Json] = {"type": "object", "properties": {"text": _TEXT}, "required": ["text"]}
        names = ("echo", "stop", "broken", "raise", "slow")
        super().__init__("scripted", [ToolSpec(name, f"Tool {name}.", parameters) for name in names])

    def opening(self, task: Mapping[str, Json]) -> tuple[Message, ...]:
        return (Message("user", str(task.get("say", "Go."))),)

    def backends(self) -> Sequence[ToolBackend]:
        return (FakeToolBackend(_respond, name="scripted"),)

    async def run_tool(self, call: ToolCall, context: ToolContext) -> ToolAnswer:
        if call.name == "raise":
            raise LookupError("a bug in the environment")
        result = await context.tools.invoke(call, backend="scripted")
        return ToolAnswer(result.output, StopReason.TOOL_STOPPED if call.name == "stop" else None)

    async def reward(self, episode: Episode, tools: ToolInvoker) -> Reward:
        return Reward(float(episode.steps))


class RogueEnvironment(ScriptedEnvironment):
    """Breaks its contract where the task says so: ``step`` and ``reward`` name what it returns."""

    @property
    def name(self) -> str:
        return "rogue"

    def backends(self) -> Sequence[ToolBackend]:
        return ()

    async def step(
        self, task: Mapping[str, Json], messages: Sequence[Message], turn: Turn, tools: ToolInvoker
    ) -> StepOutcome:
        match task.get("step"):
            case "none":
                return cast(StepOutcome, None)
            case "surrogate":
                return StepOutcome((Message("user", "\ud800"),))
            case "failed":
                return StepOutcome(stop_reason=StopReason.ENGINE_FAILED)
        return await super().step(task, messages, turn, tools)

    async def reward(self, episode: Episode, tools: ToolInvoker) -> Reward:
        match episode.task.get("reward"):
            case "numpy":
                return Reward(cast(float, np.float32(0.5)))
            case "bare":
                return cast(Reward, 1.0)
            case "nan":
                return Reward(float("nan"))
            case "info":
                return Reward(1.0, {"set": cast(Json, {1, 2})})
            case "timeout":
                raise TimeoutError("my own")
            case "slow":
                await asyncio.sleep(60.0)
        return await super().reward(episode, tools)


def _respond(invocation: ToolInvocation) -> BackendResult:
    if invocation.name == "broken":
        raise ToolBackendError("no sandbox left")
    return fake_result(str(invocation.payload["text"]), run_s=3.0 if invocation.name == "slow" else 0.0)


@dataclass
class Job:
    """How to run a batch; every field has a harmless default."""

    turn: Callable[[int], str] = lambda step: call_text("echo") if step < 2 else "The end."
    pool: str = "1+1"
    slots: int = 2
    context_tokens: int = 4096
    token_delay_s: float = 0.0
    transfer_delay_s: float = 0.0
    faults: Sequence[FakeFaults] = ()
    engine: dict[str, object] = field(default_factory=dict)
    decisions: dict[str, object] = field(default_factory=dict)
    rollouts: dict[str, object] = field(default_factory=dict)
    request: dict[str, object] = field(default_factory=dict)
    environments: dict[str, str] = field(default_factory=dict)
    """Others, as ``module:Class``."""
    model: str = "scripted"
    sent: list[GenerationRequest] = field(default_factory=list)
    """Every request that the engines got."""

    def config(self, data_dir: Path) -> HeddleConfig:
        engine = {"kind": "fake", "pool": self.pool, "slots": self.slots, **self.engine}
        return parse_config(
            {
                "data_dir": data_dir,
                "engine": {**engine, "context_tokens": self.context_tokens},
                "tools": {"isolation": "rlimits"},
                "environments": {
                    "scripted": "job_harness:ScriptedEnvironment",
                    "rogue": "job_harness:RogueEnvironment",
                    **self.environments,
                },
                "decisions": self.decisions,
                "rollouts": self.rollouts,
            }
        )

    def kit(self) -> EngineKit:
        return EngineKit(self.launcher(), TOKENIZER, FakeEngine.capabilities, self.model)

    def launcher(self) -> FakeLauncher:
        write = script(self.turn)

        def record(request: GenerationRequest) -> Sequence[int]:
            self.sent.append(request)
            return write(request)

        model = FakeModel(
            record,
            end_of_turn_id=TURN_END,
            token_delay_s=self.token_delay_s,
            context_tokens=self.context_tokens,
            transfer_delay_s=self.transfer_delay_s,
        )
        return FakeLauncher(model=model, faults=self.faults)

    def batch(self, **overrides: object) -> BatchRequest:
        values: dict[str, object] = {
            "batch_id": "b",
            "environment": "scripted",
            "prompts": [{"task": {}}],
            **self.request,
            **overrides,
        }
        return BatchRequest.model_validate(values)

    @asynccontextmanager
    async def coordinator(self, data_dir: Path) -> AsyncIterator[Coordinator]:
        async with open_coordinator(self.config(data_dir), kit=self.kit()) as coordinator:
            yield coordinator

    async def run(self, data_dir: Path) -> list[Trajectory]:
        """Run the batch to its end; records in the order of their ids."""
        async with self.coordinator(data_dir) as coordinator:
            status, _ = await coordinator.submit(self.batch())
            return await collect(coordinator, status.batch_id)

    async def run_many(self, data_dir: Path, samples: int) -> list[Trajectory]:
        """The records of so many samples."""
        self.request = {**self.request, "samples_per_prompt": samples}
        return await self.run(data_dir)

    async def run_one(self, data_dir: Path) -> Trajectory:
        """The record of a batch of one."""
        [record] = await self.run(data_dir)
        return record


async def collect(coordinator: Coordinator, batch_id: str) -> list[Trajectory]:
    """Every record of a batch, when it is over; bounded."""
    records: list[Trajectory] = []
    cursor: str | None = None
    async with asyncio.timeout(30):
        while True:
            page = await coordinator.trajectories(batch_id, after=cursor, limit=100, wait_s=5.0)
            records += [decode_trajectory(record) for record in page.records]
            cursor = page.cursor
            if page.finished:
                return sorted(records, key=lambda record: record.trajectory_id)
