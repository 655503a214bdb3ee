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


@dataclass(frozen=True, slots=True)
class Transfer:
    """Copy what ``source`` has computed of the trajectory's context to ``target``, while its tools run.

    Answered exactly once, by ``TransferFinished`` or ``TransferFailed``, within ``deadline_s`` and also after
    a ``CancelTransfer``. Until then both workers take part in no other transfer, and the trajectory's home is
    ``source``, whose copy stays valid whatever becomes of this one.
    """

    trajectory_id: TrajectoryId
    source: WorkerId
    target: WorkerId
    context_tokens: int
    """To copy at most: prompt plus everything generated and observed so far."""
    deadline_s: float
    """Seconds from now after which it has failed."""


@dataclass(frozen=True, slots=True)
class CancelTransfer:
    """The trajectory goes on at the transfer's source, or ended: break the copying off.

    Its answer still comes: ``TransferFailed``, or ``TransferFinished`` where it was done first. The control
    plane ignores what it says but takes the two workers as free again.
    """

    trajectory_id: TrajectoryId


Command: TypeAlias = Generate | Preempt | Cancel | Transfer | CancelTransfer | StartWorker | StopWorker
