"""How an agent loop and the control plane meet: facts go up, grants come down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from heddle.agent.ports import Engine
from heddle.control.events import Event
from heddle.types import Prediction, StopReason, TrajectoryId, WorkerId


@dataclass(frozen=True, slots=True)
class Grant:
    """Permission to generate now: a slot of this worker is held until an event gives it back."""

    worker_id: WorkerId
    tp_degree: int
    engine: Engine
    priority: float
    prediction: Prediction | None


class WorkerLedger(Protocol):
    """What is known of a worker's speed."""

    def decode_base_s(self, worker_id: WorkerId, tokens: int) -> float:
        """Seconds that decoding ``tokens`` takes there with nobody else in the running batch."""
        ...

    def observe_decode(self, worker_id: WorkerId, tokens: int, seconds: float) -> None: ...


class ControlLink(Protocol):
    """The control plane, as one trajectory sees it."""

    def post(self, event: Event) -> None:
        """Hand over a fact. The commands that follow from it are dispatched before this returns."""
        ...

    async def granted(self, trajectory_id: TrajectoryId) -> Grant:
        """Wait for the next permission to generate. Cancelling the wait is safe."""
        ...


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a trajectory is over. ``detail`` is for people; empty where the reason says it all."""

    reason: StopReason
    detail: str = ""
    stage: str = "generate"
    data_fault: bool = False
    """With a failed status: the fault lies with the task or its environment, not the infrastructure."""
