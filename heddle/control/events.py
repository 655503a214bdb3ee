"""Events: facts, in the past tense, from the data plane (or the simulator) into the control plane.

An event carries what a decision needs and no more: counts of tokens, never the tokens. Each is written
to the event log as it is handled, so its fields are JSON-able values and its class name is its tag.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from heddle.types import (
    BatchId,
    GroupId,
    InterruptReason,
    Prediction,
    StopReason,
    TrajectoryId,
    WorkerId,
    WorkerSpec,
)


@dataclass(frozen=True, slots=True)
class TrajectorySpec:
    """A trajectory as it enters the control plane; what has a default differs from it after a recovery."""

    trajectory_id: TrajectoryId
    group_id: GroupId
    prompt_tokens: int
    max_tokens: int
    """Sampled tokens that it may generate in total."""
    context_tokens: int
    """Prompt plus everything generated and observed so far; equals ``prompt_tokens`` for a new one."""
    generated_tokens: int = 0
    steps_done: int = 0
    between: bool = False
    """Its last step is generated but not yet observed: its tools run first, then it wants a slot."""
    max_tokens_per_step: int | None = None
    preemptible: bool = True
    """Whether a generation of it can go on from its partial output. One under a grammar cannot: it would
    start its step afresh, so it is left alone."""
    known_total_tokens: int | None = None
    """Sampled tokens at its end, where it is a replay of something recorded."""
    workload: str = ""
    """What kind of work it does, such as the name of its environment: lengths are comparable within one."""
    prompt_key: str | None = None
    """The same for the same prompt in every batch."""


@dataclass(frozen=True, slots=True)
class BatchSubmitted:
    """A batch was accepted and journalled; its trajectories want their next generation."""

    batch_id: BatchId
    trajectories: tuple[TrajectorySpec, ...]
    weight: float = 1.0
    """Share of each worker's grants, relative to the other batches that wait there."""
    deadline_s: float | None = None
    """Seconds from now until it should be done; negative where that has passed already."""


@dataclass(frozen=True, slots=True)
class BatchCancelled:
    """Somebody asked to end every open trajectory of the batch, or its time is over."""

    batch_id: BatchId
    reason: StopReason


@dataclass(frozen=True, slots=True)
class StepGenerated:
    """The generation of a step is complete; the worker's slot is free."""

    trajectory_id: TrajectoryId
    worker_id: WorkerId
    step_index: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    """Tokens sampled in this step's last segment; earlier segments came with their interruptions."""
    forced_tokens: int = 0


@dataclass(frozen=True, slots=True)
class GenerationInterrupted:
    """A generation ended before its step did; the partial tokens are kept and the slot is free."""

    trajectory_id: TrajectoryId
    worker_id: WorkerId
    step_index: int
    output_tokens: int
    reason: InterruptReason


@dataclass(frozen=True, slots=True)
class ToolsStarted:
    """The step asked for tools, and they were handed to the Tool Manager."""

    trajectory_id: TrajectoryId
    step_index: int
    tool_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ToolsFinished:
    """The observation is appended; the trajectory wants its next generation."""

    trajectory_id: TrajectoryId
    step_index: int
    appended_tokens: int
    outcomes: tuple[str, ...] = ()
    """Of each of its calls."""


@dataclass(frozen=True, slots=True)
class LengthPredicted:
    """A predictor outside the control plane estimated what remains."""

    trajectory_id: TrajectoryId
    prediction: Prediction


@dataclass(frozen=True, slots=True)
class LearningTurn:
    """Nobody waits for a decision right now: the predictor may learn a little of what has ended."""


@dataclass(frozen=True, slots=True)
class TransferFinished:
    """A transfer is done: the target has what was moved, and computes the rest of the context itself."""

    trajectory_id: TrajectoryId
    source: WorkerId
    target: WorkerId
    moved_tokens: int


@dataclass(frozen=True, slots=True)
class TransferFailed:
    """A transfer came to nothing: cancelled, too late, refused or broken. The source has what it had."""

    trajectory_id: TrajectoryId
    source: WorkerId
    target: WorkerId
    reason: str


@dataclass(frozen=True, slots=True)
class PredictorRestored:
    """What an earlier process had learned of lengths; the first event, where there is such a thing."""

    state: str
    """JSON text."""


@dataclass(frozen=True, slots=True)
class TrajectoryEnding:
    """Its run is over: it holds no slot and wants none. Its reward and its record are being made."""

    trajectory_id: TrajectoryId


@dataclass(frozen=True, slots=True)
class TrajectoryFinished:
    """The record is committed (or failed to be made); whatever it held is released."""

    trajectory_id: TrajectoryId
    stop_reason: StopReason


@dataclass(frozen=True, slots=True)
class PoolRequested:
    """The coordinator knows its resources; ``budget`` is GPUs, or threads on a CPU."""

    budget: int
    expected_tokens: tuple[int, ...] = ()
    """Sampled tokens expected of each trajectory that the pool is for, in any order; empty: not known."""


@dataclass(frozen=True, slots=True)
class WorkerAdded:
    """An operator asked for one more worker."""

    spec: WorkerSpec


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """A worker answers and may be sent work: at its first start and after every restart."""

    worker_id: WorkerId
    slots: int
    kv_capacity_tokens: int | None
    prefix_capacity_tokens: int | None = None
    """What it can keep of trajectories between their steps: more than its KV cache where it swaps prefixes
    out to the host's memory, and the same where this is ``None``."""
    shares_prompts: bool = False
    """Whether it holds the prompt of a group once, however many of its members are there."""


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A worker died. Each generation that ran there is interrupted by an event of its own."""

    worker_id: WorkerId
    reason: str
    will_restart: bool


@dataclass(frozen=True, slots=True)
class WorkerDrainRequested:
    """An operator asked a worker to finish what runs and go."""

    worker_id: WorkerId


@dataclass(frozen=True, slots=True)
class WorkerStopped:
    """A worker was stopped on order and is gone."""

    worker_id: WorkerId


@dataclass(frozen=True, slots=True)
class WeightsCommitted:
    """Other weights serve from now on."""

    reloadable: bool
    """Whether a worker that starts later can load them; not where a trainer pushed them."""


@dataclass(frozen=True, slots=True)
class DispatchPaused:
    """No further generation is to start until dispatch resumes."""


@dataclass(frozen=True, slots=True)
class DispatchResumed:
    """Generations may start again."""


Event: TypeAlias = (
    BatchSubmitted
    | BatchCancelled
    | StepGenerated
    | GenerationInterrupted
    | ToolsStarted
    | ToolsFinished
    | LengthPredicted
    | TransferFinished
    | TransferFailed
    | PredictorRestored
    | LearningTurn
    | TrajectoryEnding
    | TrajectoryFinished
    | PoolRequested
    | WorkerAdded
    | WorkerReady
    | WorkerLost
    | WorkerDrainRequested
    | WorkerStopped
    | WeightsCommitted
    | DispatchPaused
    | DispatchResumed
)
