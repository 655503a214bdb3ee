"""The finished record: what a trainer receives, and what the store keeps.

Response arrays (``response_ids, response_mask, response_logprobs, weight_versions``) have equal length.
The mask is 1 exactly on tokens that the model sampled; the logprob is 0.0 where the mask is 0. What was
sampled is never tokenised again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache

import orjson
from pydantic import TypeAdapter

from heddle.types import (
    CacheSources,
    FinishReason,
    Json,
    Message,
    SamplingParams,
    StopReason,
    TrajectoryStatus,
)


class FailureKind(StrEnum):
    """Whose fault: the infrastructure's (mask or run again, never reward 0) or the data's."""

    INFRA = "infra"
    DATA = "data"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a trajectory failed. ``stage`` is where: reset, generate, tool, reward, gate."""

    kind: FailureKind
    stage: str
    message: str


@dataclass(frozen=True, slots=True)
class ToolCallRecord:
    """One tool invocation, with its latency split (seconds)."""

    call_id: str
    name: str
    arguments: Mapping[str, Json]
    result: str
    ok: bool
    """False where the code or command failed; such a failure is an observation, not an error."""
    outcome: str
    """ok, error, timed_out, memory_exceeded, output_exceeded, killed, invalid, unresolved."""
    queue_s: float
    cold_start_s: float
    run_s: float
    retries: int = 0
    """Deliveries before the one that gave the result; the infrastructure failed in each of them."""


@dataclass(frozen=True, slots=True)
class MoveRecord:
    """An attempt to bring the trajectory's prefix to another worker while a step's tools ran.

    Nobody waits for it: where the tools return first, the trajectory goes on where it was.
    """

    source: str
    target: str
    outcome: str
    """moved, withdrawn (the tools returned first, or a worker went), failed."""
    seconds: float
    """From its order to its end, all of it hidden by the tools where it moved."""
    detail: str = ""
    """Why it failed."""
    moved_tokens: int = 0
    """Of the prefix what the target did not have to compute."""
    computed_tokens: int = 0
    """Of the prefix what the target computed meanwhile."""
    nbytes: int | None = None
    """Moved for it; ``None`` where nobody counts."""
    sources: CacheSources | None = None
    """Where the target had ``moved_tokens`` from, if it tells."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step: a generation, possibly in several segments on several workers, and its tool calls."""

    step_index: int
    worker_id: str
    """The worker of the last segment."""
    tp_degree: int
    prompt_tokens: int
    cached_tokens: int
    """Prefix tokens that the engine did not compute again, over all segments."""
    output_tokens: int
    forced_tokens: int
    """Tokens put into the model's mouth before it sampled (mask 0)."""
    finish_reason: FinishReason
    weight_version: int
    constrained: bool
    """True where a grammar or a recorded length restricted the sampling; logprobs are then those of the
    unrestricted model."""
    segments: int
    """Generations that made this step: 1 plus its interruptions."""
    preemptions: int
    tool_calls: tuple[ToolCallRecord, ...]
    queue_s: float
    prefill_s: float
    decode_s: float
    echoed_sampling: SamplingParams | None = None
    """The parameters by which the engine says it sampled; ``None`` where it does not tell."""
    migration: MoveRecord | None = None
    """What was tried last while its tools ran; ``None`` where nothing was."""


@dataclass(frozen=True, slots=True)
class PredictionRecord:
    """A length prediction as it was made, to be judged when the trajectory is finished."""

    made_after_step: int
    predicted_total_tokens: float
    predicted_remaining_tokens: float
    low_tokens: float
    high_tokens: float
    model: str


@dataclass(frozen=True, slots=True)
class Timing:
    """Where the wall time went (seconds); the parts add up to ``wall`` within 1 %."""

    queue: float = 0.0
    prefill: float = 0.0
    decode_base: float = 0.0
    """What the same tokens would have taken alone on that worker."""
    interference: float = 0.0
    """What the others in the running batch added."""
    preemption: float = 0.0
    migration: float = 0.0
    """Computing again, on a worker that it moved to, what the one before had computed."""
    tool_queue: float = 0.0
    tool_cold: float = 0.0
    tool_run: float = 0.0
    engine_stall: float = 0.0
    """Lost to engines that crashed, hung or failed."""
    coordinator: float = 0.0
    """Parsing, tokenising, journalling, rewards: everything of Heddle's own."""
    wall: float = 0.0

    @property
    def parts(self) -> float:
        """Sum of everything but ``wall``."""
        decoding = self.prefill + self.decode_base + self.interference
        tools = self.tool_queue + self.tool_cold + self.tool_run
        moves = self.preemption + self.migration
        return self.queue + decoding + tools + moves + self.engine_stall + self.coordinator


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One finished trajectory."""

    trajectory_id: str
    batch_id: str
    group_id: str
    prompt_id: str
    sample_index: int
    attempt: int
    environment: str
    status: TrajectoryStatus
    stop_reason: StopReason
    failure: Failure | None
    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    response_logprobs: list[float]
    weight_versions: list[int]
    steps: list[StepRecord]
    messages: list[Message]
    reward: float | None
    reward_info: dict[str, Json]
    predictions: list[PredictionRecord]
    timing: Timing
    metadata: dict[str, Json] = field(default_factory=dict)
    """What the caller sent with the prompt, returned untouched."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    """The parameters that were asked for."""

    @property
    def sampled_tokens(self) -> int:
        """Tokens that the model sampled."""
        return sum(self.response_mask)


def encode_trajectory(trajectory: Trajectory) -> bytes:
    """One JSON object, no newline."""
    return orjson.dumps(trajectory)


def decode_trajectory(line: bytes) -> Trajectory:
    """The inverse of :func:`encode_trajectory`; raises ``pydantic.ValidationError`` on a foreign record."""
    return _adapter().validate_json(line)


@cache
def _adapter() -> TypeAdapter[Trajectory]:
    """Made when it is first needed: whoever only writes records starts without it."""
    return TypeAdapter(Trajectory)
