"""Commands: orders, in the imperative, from the control plane to the data plane (or the simulator)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from heddle.types import Prediction, StopReason, TrajectoryId, WorkerId, WorkerSpec


@dataclass(frozen=True, slots=True)
class Generate:
    """Run (or go on with) the trajectory's current step on this worker; a slot is held for it."""

    trajectory_id: TrajectoryId
    worker_id: WorkerId
    step_index: int
    priority: float
    """Larger is sooner; for engines that order by themselves."""
    prediction: Prediction | None


@dataclass(frozen=True, slots=True)
class Preempt:
    """Interrupt the trajectory's generation on this worker, keeping what it sampled.

    Its slot is free when ``GenerationInterrupted`` says so, or ``StepGenerated`` where it was done first.
    """

    trajectory_id: TrajectoryId
    worker_id: WorkerId


@dataclass(frozen=True, slots=True)
class Cancel:
    """End the trajectory for this reason; a ``TrajectoryFinished`` must follow."""

    trajectory_id: TrajectoryId
    stop_reason: StopReason
    detail: str


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Start this worker and keep it running."""

    spec: WorkerSpec


@dataclass(frozen=True, slots=True)
class StopWorker:
    """Stop this worker for good; nothing runs there any more."""

    worker_id: WorkerId


Command: TypeAlias = Generate | Preempt | Cancel | StartWorker | StopWorker
