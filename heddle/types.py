"""The vocabulary shared by both sides of the wall: identities, reasons, small immutable values.

Trajectory > step. A *trajectory* is one agent run for one prompt and the unit of scheduling; a *step* is
one generation by the model plus the tool calls it asked for. A *group* is the samples of one prompt.
Everything here is a value: frozen, slotted, without behaviour beyond derived facts. Nothing here may
import a clock, a socket or another part of Heddle, but for the values of lengths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NewType, Protocol, TypeAlias

from typing_extensions import TypeAliasType

from heddle.decoding import DecodeMoments
from heddle.lengths import NO_STEP as NO_STEP
from heddle.lengths import Prediction as Prediction
from heddle.lengths import StepView as StepView
from heddle.lengths import Trust as Trust

Json = TypeAliasType("Json", "bool | int | float | str | list[Json] | dict[str, Json] | None")
"""Any JSON value; the arguments of a tool call and the task of an environment are made of these.

A named alias, because pydantic cannot follow an anonymous recursive one.
"""

JsonWritable: TypeAlias = "Json | Sequence[JsonWritable] | Mapping[str, JsonWritable]"
"""What can be written as JSON: ``Json``, and what is like it but for tuples."""

BatchId = NewType("BatchId", str)
GroupId = NewType("GroupId", str)
TrajectoryId = NewType("TrajectoryId", str)
"""Readable and unique: ``{batch}-g{prompt_index}-t{sample_index}``."""
WorkerId = NewType("WorkerId", str)


class TrajectoryStatus(StrEnum):
    """How a trajectory stands; every value but ``PENDING`` is final."""

    PENDING = "pending"
    COMPLETED = "completed"
    """The agent finished by itself: a final answer, or a tool that ends the task."""
    TRUNCATED = "truncated"
    """A limit ended it; what was generated is valid."""
    ABORTED = "aborted"
    """Somebody ended it from outside."""
    FAILED = "failed"
    """It could not go on; ``failure`` says whose fault."""


class StopReason(StrEnum):
    """Why a trajectory ended. A generation's own ending is a :class:`FinishReason`."""

    COMPLETED = "completed"
    """The model gave its final answer without asking for another tool."""
    TOOL_STOPPED = "tool_stopped"
    """A tool or the environment declared the task over."""
    MAX_STEPS = "max_steps"
    MAX_TOKENS = "max_tokens"
    """The budget of sampled tokens over all steps and resumptions is spent."""
    MAX_TOOL_CALLS = "max_tool_calls"
    CONTEXT_OVERFLOW = "context_overflow"
    """Prompt plus response no longer fit the engine's context."""
    PARSE_ERROR = "parse_error"
    """Too many invalid tool calls in a row."""
    TIMED_OUT = "timed_out"
    """The wall-clock limit of the trajectory passed."""
    CANCELLED = "cancelled"
    ENGINE_FAILED = "engine_failed"
    TOOL_FAILED = "tool_failed"
    """The tool *infrastructure* (not the model's code) failed."""

    @property
    def status(self) -> TrajectoryStatus:
        """The final status that this reason implies."""
        return _STATUS_OF_REASON[self]


_STATUS_OF_REASON: Mapping[StopReason, TrajectoryStatus] = {
    StopReason.COMPLETED: TrajectoryStatus.COMPLETED,
    StopReason.TOOL_STOPPED: TrajectoryStatus.COMPLETED,
    StopReason.MAX_STEPS: TrajectoryStatus.TRUNCATED,
    StopReason.MAX_TOKENS: TrajectoryStatus.TRUNCATED,
    StopReason.MAX_TOOL_CALLS: TrajectoryStatus.TRUNCATED,
    StopReason.CONTEXT_OVERFLOW: TrajectoryStatus.TRUNCATED,
    StopReason.PARSE_ERROR: TrajectoryStatus.TRUNCATED,
    StopReason.TIMED_OUT: TrajectoryStatus.TRUNCATED,
    StopReason.CANCELLED: TrajectoryStatus.ABORTED,
    StopReason.ENGINE_FAILED: TrajectoryStatus.FAILED,
    StopReason.TOOL_FAILED: TrajectoryStatus.FAILED,
}


class FinishReason(StrEnum):
    """Why one generation ended, in the engine's word."""

    STOP = "stop"
    """An end-of-turn token was sampled; it is the last of the generated ids."""
    LENGTH = "length"
    ABORT = "abort"
    """The request was aborted; the ids generated so far are valid."""


class InterruptReason(StrEnum):
    """Why a generation ended before the step did; the trajectory goes on elsewhere or later."""

    WORKER_LOST = "worker_lost"
    ENGINE_ERROR = "engine_error"
    ENGINE_TIMEOUT = "engine_timeout"
    PREEMPTED = "preempted"
    """The control plane or the engine gave its slot to another; nothing failed."""


class PauseMode(StrEnum):
    """What becomes of running generations while an engine pauses."""

    ABORT = "abort"
    """They end with what they have."""
    RETRACT = "retract"
    """They wait, and their prefixes are computed anew afterwards: nothing of the old weights is left."""
    IN_PLACE = "in_place"
    """They wait and go on with what they have computed, by whatever weights."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn. The defaults sample the raw model distribution, as RL needs."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps the whole vocabulary."""
    min_p: float = 0.0
    seed: int | None = None
    """Base seed of the batch; each trajectory and step derives its own from it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What ends a trajectory from within. Token limits count sampled tokens only."""

    max_steps: int = 8
    max_tokens: int = 2048
    """Sampled tokens over the whole trajectory, resumptions included."""
    max_tokens_per_step: int = 256
    max_tool_calls: int = 64
    max_invalid_tool_calls: int = 3
    """Consecutive steps with an invalid tool call before ``parse_error``."""
    timeout_s: float = 1800.0
    """Wall clock from the moment the trajectory is submitted."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """One tool as the model sees it; ``parameters`` is a JSON schema of an object."""

    name: str
    description: str
    parameters: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call parsed from a generation. ``call_id`` is unique within its trajectory."""

    call_id: str
    name: str
    arguments: Mapping[str, Json]


Role: TypeAlias = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class Message:
    """One entry of the readable transcript. ``content`` of an assistant is exactly what was decoded."""

    role: Role
    content: str
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What to start. On GPUs ``tp_degree`` counts GPUs, on a CPU it counts threads of the engine."""

    worker_id: WorkerId
    tp_degree: int
    slots: int
    """Generations that may run at once."""


class TrajectoryPhase(StrEnum):
    """Where a trajectory stands for the control plane."""

    QUEUED = "queued"
    """Wants to generate and waits for a slot (or for a worker)."""
    GENERATING = "generating"
    IN_TOOL = "in_tool"
    BETWEEN = "between"
    """The step is generated; the data plane has not yet said whether tools follow."""
    ENDING = "ending"
    """Its run is over; its reward and its record are being made."""
    FINISHED = "finished"


class WorkerPhase(StrEnum):
    """Where a worker stands for the control plane."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    """Finishes what runs, takes nothing new, then stops."""
    DOWN = "down"
    """Crashed; its supervisor may bring it back."""
    STOPPED = "stopped"


class TrajectoryView(Protocol):
    """What a decision may know of a trajectory. Read-only."""

    @property
    def trajectory_id(self) -> TrajectoryId: ...
    @property
    def batch_id(self) -> BatchId: ...
    @property
    def group_id(self) -> GroupId: ...
    @property
    def phase(self) -> TrajectoryPhase: ...
    @property
    def worker_id(self) -> WorkerId | None: ...
    @property
    def submitted_at(self) -> float: ...
    @property
    def queued_at(self) -> float: ...
    @property
    def arrival(self) -> int:
        """Position in the order of admission to the current queue; breaks every tie the same way."""
        ...

    @property
    def steps_done(self) -> int: ...
    @property
    def context_tokens(self) -> int: ...
    @property
    def generated_tokens(self) -> int: ...
    @property
    def prediction(self) -> Prediction | None: ...
    @property
    def predicted_remaining_tokens(self) -> float | None:
        """The prediction less what was generated since it was made; never below 0."""
        ...

    @property
    def moves(self) -> int:
        """How often it was moved while its tools ran."""
        ...

    @property
    def known_total_tokens(self) -> int | None:
        """What it will have generated at its end, where a replay knows; only oracles may look."""
        ...

    @property
    def max_tokens(self) -> int:
        """Sampled tokens that it may generate in total."""
        ...

    @property
    def workload(self) -> str:
        """What kind of work it does: lengths are comparable within one."""
        ...

    @property
    def prompt_key(self) -> str | None:
        """The same for the same prompt in every batch; ``None`` where nobody told."""
        ...

    @property
    def prompt_tokens(self) -> int: ...
    @property
    def last_step(self) -> StepView:
        """Of its last finished step; all zero before the first."""
        ...

    @property
    def tool_seconds(self) -> float:
        """Seconds spent in tools so far, their queueing included."""
        ...


class WorkerView(Protocol):
    """What a decision may know of a worker. Read-only."""

    @property
    def worker_id(self) -> WorkerId: ...
    @property
    def tp_degree(self) -> int: ...
    @property
    def slots(self) -> int: ...
    @property
    def phase(self) -> WorkerPhase: ...
    @property
    def resident(self) -> int:
        """Trajectories whose home this worker is, those in tools included."""
        ...

    @property
    def running(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def residents(self) -> Mapping[TrajectoryId, TrajectoryView]: ...
    @property
    def kv_tokens(self) -> int:
        """Context of all residents that hold some of its memory."""
        ...

    @property
    def kv_limit_tokens(self) -> float | None:
        """What they may hold together; ``None`` where nothing is guarded."""
        ...

    @property
    def transfers(self) -> int:
        """Accepted transfers from or to it that have not ended."""
        ...

    @property
    def placed_total(self) -> int:
        """Trajectories ever placed here; breaks ties so that equal workers fill evenly."""
        ...


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What an engine says about itself; ``None`` where it does not tell."""

    running: int
    waiting: int
    kv_used_tokens: int | None = None
    kv_capacity_tokens: int | None = None
    cache_hit_rate: float | None = None
    """Share of the prompt tokens that were not computed again, lately."""
    decoding: DecodeMoments | None = None
    """Over all steps since the engine started."""
    extra: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CacheSources:
    """Where the cached tokens of a prompt came from. All zero where nothing was cached."""

    device: int = 0
    """Computed before on this worker, and still in its memory."""
    host: int = 0
    """Brought back from the worker's host memory."""
    storage: int = 0
    """Fetched from the store that workers share."""


@dataclass(frozen=True, slots=True)
class PrefixTransfer:
    """What a transfer between two engines brought."""

    moved_tokens: int
    """Of the prefix what the target has without having computed it."""
    computed_tokens: int = 0
    """What the target computed of it on this occasion."""
    nbytes: int | None = None
    """Moved for it; ``None`` where nobody counts."""
    sources: CacheSources | None = None
    """Where the target had it from, if it tells."""


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """What a warm-up found."""

    tokens: int
    sources: CacheSources | None = None
    """``None`` where the engine does not tell them apart."""


@dataclass(frozen=True, slots=True)
class WeightCall:
    """One call by which a trainer hands weights to an engine, in the engine's own words."""

    endpoint: str
    body: Mapping[str, Json]
