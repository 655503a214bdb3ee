"""The five decisions that the control plane delegates. Pure: time and randomness are arguments.

Each has sibling implementations, one file each, in the package of its name. None of them acts: a
decision is a returned value, and the control plane alone turns it into state and commands.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from heddle.types import Prediction, TrajectoryId, TrajectoryView, WorkerId, WorkerSpec, WorkerView


class Scheduler(Protocol):
    """When: in which order the trajectories that wait at one worker get its slots."""

    @property
    def name(self) -> str: ...

    def priority(self, trajectory: TrajectoryView, now: float) -> float:
        """Rank of a waiting trajectory, fixed while it waits; larger runs sooner, ties by arrival.

        Asked again when its prediction changes.
        """
        ...

    @property
    def margin(self) -> float | None:
        """By how much a waiting trajectory must outrank a running one to take its slot.

        Strictly by more, in units of ``priority``; ``None`` where nobody is ever preempted.
        """
        ...

    @property
    def predictive(self) -> bool:
        """Whether priorities follow from predictions. Without one a trajectory is ranked by a guess, which
        is good enough to wait by, but not to interrupt anybody or to be interrupted."""
        ...


class Placer(Protocol):
    """Where: the worker that a trajectory without a home gets."""

    @property
    def name(self) -> str: ...

    def place(self, trajectory: TrajectoryView, workers: Sequence[WorkerView]) -> WorkerId:
        """Choose among ``workers``: never empty, all ready, in order of their ids."""
        ...


class Allocator(Protocol):
    """How: which workers, of which parallel degree, a budget is made into."""

    @property
    def name(self) -> str: ...

    def allocate(self, budget: int) -> tuple[WorkerSpec, ...]:
        """Workers that fit ``budget``: the sum of their degrees is at most that, unless all are one.

        Raises ``ConfigError`` where none fit.
        """
        ...


@dataclass(frozen=True, slots=True)
class MigrationProposal:
    """Move this trajectory from ``source`` to ``target`` while its tool runs."""

    trajectory_id: TrajectoryId
    source: WorkerId
    target: WorkerId


class MigrationPlanner(Protocol):
    """Whether to move: proposals only; the control plane accepts or refuses each."""

    @property
    def name(self) -> str: ...

    def propose(
        self, in_tool: Sequence[TrajectoryView], workers: Sequence[WorkerView], now: float
    ) -> Iterable[MigrationProposal]: ...


class LengthPredictor(Protocol):
    """How many tokens a trajectory has still to generate; learns from those that finished."""

    @property
    def name(self) -> str: ...

    def predict(self, trajectory: TrajectoryView) -> Prediction | None:
        """Estimate from what is known now; ``None`` while nothing is."""
        ...

    def observe_step(self, trajectory: TrajectoryView) -> None:
        """A step of this trajectory was generated; its counters already include it."""
        ...

    def observe_finished(self, trajectory: TrajectoryView) -> None:
        """The trajectory reached its own end (cancelled and failed ones are not shown)."""
        ...

    def forget(self, trajectory_id: TrajectoryId) -> None:
        """The trajectory ended in another way: whatever is remembered of it may go."""
        ...
