"""A coordinator in a process of its own that kills itself at a named instant, as ``kill -9`` would.

Everything is real but the engine, which is a fake that samples a function of what it was sent. Runs as the
target of a ``multiprocessing`` process.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    ExitStack,
    redirect_stderr,
    redirect_stdout,
)
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import ParamSpec, TypeVar
from unittest.mock import patch

import orjson

from heddle import app
from heddle.agent.loop import TrajectoryRun
from heddle.agent.ports import Episode, GenerationRequest, Reward, ToolInvocation, ToolInvoker
from heddle.api.schemas import BatchRequest
from heddle.config import HeddleConfig, parse_config
from heddle.coordinator.assembly import EngineKit
from heddle.coordinator.service import Coordinator
from heddle.engines.fake import FakeEngine, FakeLauncher, FakeModel
from heddle.environments.base import ToolAnswer, ToolContext, ToolEnvironment
from heddle.eventlog import EventLogWriter
from heddle.metrics import Metrics
from heddle.store.tables import write_group
from heddle.store.transactions import Transactions
from heddle.text.byte_tokenizer import TURN_END, TURN_START, ByteTokenizer
from heddle.tools.fake import FakeToolBackend, fake_result
from heddle.tools.ports import BackendResult, ToolBackend
from heddle.tools.sandbox import Isolation
from heddle.types import Json, Message, ToolCall, ToolSpec

TOKENIZER = ByteTokenizer()
OPENING = (TURN_START, *b"assistant\n")
DEADLINE_S = 60.0
CONTEXT_TOKENS = 8192
P = ParamSpec("P")
R = TypeVar("R")


class Boundary(StrEnum):
    """The instants at which a coordinator can die."""

    EVENT = "event"
    """An event was handled; nothing of what follows from it was done."""
    COMMITTING = "committing"
    """A group of writes is in the transaction, which is not committed."""
    COMMITTED = "committed"
    """It is committed, and nobody has heard of it."""
    RESUMING = "resuming"
    """A journal was read back by a coordinator that recovers."""


@dataclass(frozen=True, slots=True)
class CrashAt:
    """The ``number``-th instant of its kind, from 0."""

    boundary: Boundary
    number: int


@dataclass(frozen=True, slots=True)
class Work:
    """What the coordinator is to do. Its records end up in the store of ``data_dir``."""

    data_dir: Path
    prompts: int
    isolation: Isolation
    token_delay_s: float = 0.0

    @property
    def effects(self) -> Path:
        """One line for each delivery of a call that must not be delivered twice: its key."""
        return self.data_dir / "effects"

    @property
    def counts(self) -> Path:
        """How many instants of each kind there were; written by a run that was not killed."""
        return self.data_dir / "boundaries.json"

    @property
    def opened(self) -> Path:
        """Seconds that opening took, recovery included."""
        return self.data_dir / "opened.json"

    def batch(self) -> BatchRequest:
        prompts = [{"task": {"say": f"Task {n}", "effects": str(self.effects)}} for n in range(self.prompts)]
        return BatchRequest.model_validate(
            {
                "batch_id": "b",
                "environment": "crashing",
                "prompts": prompts,
                "limits": {"max_steps": 6, "max_tokens": 4096},
            }
        )


def run_coordinator(work: Work, crash: CrashAt | None) -> None:
    """Run the batch to its end, or die at the instant. Leaves no line on the terminal."""
    with ExitStack() as stack:
        silence = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
        stack.enter_context(redirect_stdout(silence))
        stack.enter_context(redirect_stderr(silence))
        instants = _Instants(crash)
        for change in instants.changes():
            stack.enter_context(change)
        asyncio.run(_run(work))
        work.counts.write_bytes(
            orjson.dumps({kind.value: number for kind, number in instants.passed.items()})
        )


class _Instants:
    """Counts the instants of each kind and dies at the one that was ordered."""

    def __init__(self, crash: CrashAt | None) -> None:
        self._crash = crash
        self.passed: dict[Boundary, int] = dict.fromkeys(Boundary, 0)

    def reach(self, boundary: Boundary) -> None:
        if self._crash == CrashAt(boundary, self.passed[boundary]):
            os.kill(os.getpid(), signal.SIGKILL)
        self.passed[boundary] += 1

    def changes(self) -> Sequence[AbstractContextManager[object]]:
        """What puts the instants into the parts of this process, which serves this one purpose."""
        after = self._after
        store = "heddle.store.transactions"
        apply = Transactions.apply
        return (
            patch.object(EventLogWriter, "append", after(EventLogWriter.append, Boundary.EVENT)),
            patch(f"{store}.write_group", after(write_group, Boundary.COMMITTING)),
            patch(f"{store}.Transactions.apply", after(apply, Boundary.COMMITTED)),
            patch.object(TrajectoryRun, "restore", after(TrajectoryRun.restore, Boundary.RESUMING)),
        )

    def _after(self, act: Callable[P, R], boundary: Boundary) -> Callable[P, R]:
        def acting(*args: P.args, **kwargs: P.kwargs) -> R:
            result = act(*args, **kwargs)
            self.reach(boundary)
            return result

        return acting


async def _run(work: Work) -> None:
    began = time.monotonic()
    work.data_dir.mkdir(parents=True, exist_ok=True)
    async with coordinator_on(work, Metrics()) as coordinator:
        work.opened.write_bytes(orjson.dumps(time.monotonic() - began))
        await coordinator.submit(work.batch())
        await finish(coordinator)


def coordinator_on(work: Work, metrics: Metrics) -> AbstractAsyncContextManager[Coordinator]:
    """A coordinator on this work's data."""
    return app.open_coordinator(_config(work), metrics, _kit(work), work.isolation)


async def finish(coordinator: Coordinator) -> None:
    """Wait for the end of the batch."""
    cursor: str | None = None
    async with asyncio.timeout(DEADLINE_S):
        while True:
            page = await coordinator.trajectories("b", after=cursor, limit=1000, wait_s=10.0)
            if page.finished:
                return
            cursor = page.cursor


def _config(work: Work) -> HeddleConfig:
    return parse_config(
        {
            "data_dir": work.data_dir,
            "log_level": "error",
            "engine": {"kind": "fake", "pool": "1+1", "slots": 2, "context_tokens": CONTEXT_TOKENS},
            "environments": {"crashing": "crash_child:CrashingEnvironment"},
        }
    )


def _kit(work: Work) -> EngineKit:
    model = FakeModel(
        speak,
        end_of_turn_id=TURN_END,
        token_delay_s=work.token_delay_s,
        chunk_tokens=16,
        context_tokens=8192,
    )
    return EngineKit(FakeLauncher(model=model), TOKENIZER, FakeEngine.capabilities, "crashing")


def speak(request: GenerationRequest) -> Sequence[int]:
    """A few calls that follow from the prompt, then the end; goes on where a request has their beginning."""
    ids = list(request.prompt_ids)
    places = [at for at in range(len(ids)) if tuple(ids[at : at + len(OPENING)]) == OPENING]
    first, last = places[0], places[-1]
    fate = zlib.crc32(repr(ids[:first]).encode())
    said = turn_of(fate, len(places) - 1)
    return [*TOKENIZER.encode(said), TURN_END][len(ids) - last - len(OPENING) :]


def turn_of(fate: int, step: int) -> str:
    if step >= 1 + fate % 4:
        return f"The end of {fate}."
    name = CALLS[(fate >> 4) + step & 3]
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{"number": {fate % 1000 + step}}}}}\n</tool_call>'


CALLS = ("echo", "run", "post", "echo")
_PARAMETERS: dict[str, Json] = {
    "type": "object",
    "properties": {"number": {"type": "integer"}},
    "required": ["number"],
}


class CrashingEnvironment(ToolEnvironment):
    """``echo`` is harmless, ``run`` is a process in the sandbox, ``post`` changes the world outside."""

    def __init__(self) -> None:
        super().__init__(
            "crashing", [ToolSpec(name, f"Tool {name}.", _PARAMETERS) for name in dict.fromkeys(CALLS)]
        )

    def opening(self, task: Mapping[str, Json]) -> tuple[Message, ...]:
        return (Message("user", str(task["say"])),)

    def backends(self) -> Sequence[ToolBackend]:
        return (
            FakeToolBackend(lambda call: fake_result(f"heard {call.payload['number']}"), name="harmless"),
            FakeToolBackend(_post, name="world", repeatable=False),
        )

    async def run_tool(self, call: ToolCall, context: ToolContext) -> ToolAnswer:
        number = call.arguments["number"]
        match call.name:
            case "run":
                payload: dict[str, Json] = {"code": f"print({number} * 2)"}
                result = await context.tools.invoke(call, backend="python", payload=payload)
            case "post":
                payload = {"number": number, "effects": context.task["effects"]}
                result = await context.tools.invoke(call, backend="world", payload=payload)
            case _:
                result = await context.tools.invoke(call, backend="harmless")
        return ToolAnswer(result.output)

    async def reward(self, episode: Episode, tools: ToolInvoker) -> Reward:
        return Reward(float(sum(call.ok for call in episode.tool_calls)))


def _post(invocation: ToolInvocation) -> BackendResult:
    with open(str(invocation.payload["effects"]), "a", encoding="utf-8") as effects:
        effects.write(f"{invocation.key}\n")
    return fake_result(f"posted {invocation.payload['number']}")
