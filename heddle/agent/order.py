"""What an agent loop is told to run, and with what."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from heddle.agent.journal import Journal
from heddle.agent.link import ControlLink, WorkerLedger
from heddle.agent.once import ToolExecutor
from heddle.agent.ports import Environment, Tokenizer
from heddle.agent.reading import ProgressReader, example_of
from heddle.records import StepRecord, Trajectory
from heddle.text.parsers import ToolCallParser
from heddle.types import BatchId, GroupId, Json, Limits, Message, SamplingParams, ToolSpec, TrajectoryId


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """One prompt, rendered once and shared by all its samples."""

    prompt_id: str
    environment: Environment
    task: Mapping[str, Json]
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    prompt_ids: Sequence[int]
    forced_ids: Sequence[int]
    """Put before each generation (mask 0); empty unless tool calls are constrained."""
    json_schema: Mapping[str, Json] | None
    parser: ToolCallParser
    metadata: Mapping[str, Json]
    step_tokens: Sequence[int] | None = None
    """Of a replay: what each step samples, with the end of the turn suppressed."""

    @property
    def constrained(self) -> bool:
        """Whether sampling is restricted: by a grammar, or never to end."""
        return self.json_schema is not None or self.step_tokens is not None

    @property
    def resumable(self) -> bool:
        """Whether a generation can go on from its partial output; a grammar starts from its beginning."""
        return self.json_schema is None


@dataclass(frozen=True, slots=True)
class TrajectoryOrder:
    """One trajectory to run."""

    trajectory_id: TrajectoryId
    batch_id: BatchId
    group_id: GroupId
    sample_index: int
    attempt: int
    prompt: PreparedPrompt
    sampling: SamplingParams
    limits: Limits


class RunObserver(Protocol):
    """Told of what happened, for metrics and live views. Must not raise and must not block."""

    def step_finished(self, step: StepRecord) -> None: ...

    def came_late(self, what: str) -> None:
        """Something of an attempt that was given up was ignored: ``tokens``, or the result of a ``tool``."""
        ...

    def record_refused(self, gates: Sequence[str]) -> None:
        """Admission gates refused a record; one name for each gate."""
        ...

    def trajectory_finished(self, trajectory: Trajectory) -> None: ...


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Bounds that hold for every generation and every tool call."""

    context_tokens: int
    step_deadline_s: float
    token_deadline_s: float
    max_interruptions: int
    max_tool_retries: int = 0
    """Of a call whose backend failed, where it may be repeated."""


@dataclass(frozen=True, slots=True)
class LoopServices:
    """Everything outside that an agent loop uses; the same object serves all trajectories."""

    link: ControlLink
    ledger: WorkerLedger
    tokenizer: Tokenizer
    tools: ToolExecutor
    journal: Journal
    observer: RunObserver
    model: str
    """Names the weights and the tokenizer that are in use."""
    engine: EngineLimits
    now: Callable[[], float]
    """A monotonic clock, in seconds."""
    finishing: asyncio.Semaphore
    """Held while a record is built and committed. A record in lists and JSON takes many times the memory of
    the token arrays; without a bound, a batch whose trajectories end together would hold all at once."""
    reader: ProgressReader | None = None
    """Models that estimate lengths from text; ``None`` where there are none."""
    max_version_span: int | None = None
    """Of the weights that sampled one trajectory; ``None`` where any is admitted."""

    def read(
        self,
        order: TrajectoryOrder,
        steps: Sequence[StepRecord],
        messages: Sequence[Message],
        context_tokens: int,
        appended_tokens: int,
    ) -> None:
        """Let the models read how far a trajectory has come, where there are models.

        ``appended_tokens`` are those of the last step's observation; 0 while its tools run.
        """
        if self.reader is not None:
            prompt_ids = order.prompt.prompt_ids
            now = example_of(prompt_ids, steps, messages, context_tokens, appended_tokens)
            self.reader.progressed(order.trajectory_id, now)
