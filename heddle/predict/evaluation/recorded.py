"""Finished trajectories as a predictor would have met them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from heddle.types import (
    NO_STEP,
    BatchId,
    GroupId,
    Prediction,
    StepView,
    TrajectoryId,
    TrajectoryPhase,
    WorkerId,
)

RECORDED = BatchId("recorded")

UNLIMITED_TOKENS = 1 << 40
"""Budget of a recording that does not tell its own."""


@dataclass(frozen=True, slots=True)
class RecordedPoint:
    """A trajectory after ``steps_done`` steps, the tools of the last one included."""

    steps_done: int
    generated_tokens: int
    context_tokens: int
    last_step: StepView = NO_STEP
    tool_seconds: float = 0.0
    """In all steps so far, as far as they were recorded."""
    text: str | None = None
    """What a text model may read of the context; ``None`` where only counts were kept."""


@dataclass(frozen=True, slots=True)
class RecordedTrajectory:
    """One finished trajectory; at least one point, the first before its first step."""

    trajectory_id: TrajectoryId
    prompt_id: str
    workload: str
    points: tuple[RecordedPoint, ...]
    total_tokens: int
    total_steps: int
    tool_seconds: float = 0.0
    held_out: bool | None = None
    """Whether it is for testing; ``None`` where the recording does not say."""


@dataclass(slots=True, eq=False)
class ReplayedView:
    """A recorded trajectory on its way; satisfies :class:`~heddle.types.TrajectoryView`."""

    trajectory_id: TrajectoryId
    group_id: GroupId
    workload: str
    prompt_key: str | None
    prompt_tokens: int
    context_tokens: int
    batch_id: BatchId = RECORDED
    phase: TrajectoryPhase = TrajectoryPhase.QUEUED
    worker_id: WorkerId | None = None
    submitted_at: float = 0.0
    queued_at: float = 0.0
    arrival: int = 0
    moves: int = 0
    steps_done: int = 0
    generated_tokens: int = 0
    last_step: StepView = NO_STEP
    tool_seconds: float = 0.0
    max_tokens: int = UNLIMITED_TOKENS
    prediction: Prediction | None = None
    known_total_tokens: int | None = None

    @property
    def predicted_remaining_tokens(self) -> float | None:
        """See ``TrajectoryView``; asked at the very point of the prediction."""
        return None if self.prediction is None else self.prediction.remaining_tokens

    def advance(self, point: RecordedPoint) -> None:
        """Stand where the recording stood."""
        self.steps_done, self.generated_tokens = point.steps_done, point.generated_tokens
        self.context_tokens, self.last_step = point.context_tokens, point.last_step
        self.tool_seconds = point.tool_seconds


def view_of(recorded: RecordedTrajectory, group: GroupId, *, known: bool) -> ReplayedView:
    """The trajectory at its beginning; ``known`` tells oracles its length."""
    first = recorded.points[0]
    return ReplayedView(
        recorded.trajectory_id,
        group,
        recorded.workload,
        f"{recorded.workload}/{recorded.prompt_id}",
        first.context_tokens,
        first.context_tokens,
        known_total_tokens=recorded.total_tokens if known else None,
    )


def waves(trajectories: Sequence[RecordedTrajectory], prompts: int) -> list[list[RecordedTrajectory]]:
    """Batches of so many prompts with all their samples, in the order in which prompts first occur."""
    by_prompt: dict[str, list[RecordedTrajectory]] = {}
    for trajectory in trajectories:
        by_prompt.setdefault(trajectory.prompt_id, []).append(trajectory)
    groups = list(by_prompt.values())
    return [
        [trajectory for group in groups[start : start + prompts] for trajectory in group]
        for start in range(0, len(groups), prompts)
    ]
