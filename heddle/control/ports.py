"""The six decisions that the control plane delegates. Pure: time and randomness are arguments.

Each has sibling implementations, one file each, in the package of its name. None of them acts: a
decision is a returned value, and the control plane alone turns it into state and commands.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from heddle.types import (
    JsonWritable,
    Prediction,
    TrajectoryId,
    TrajectoryView,
    Trust,
    WorkerId,
    WorkerSpec,
    WorkerView,
)


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
    """Where: the worker that a trajectory lives on."""

    @property
    def name(self) -> str: ...

    def prepare(self, trajectories: Sequence[TrajectoryView], workers: Sequence[WorkerView]) -> None:
        """A batch came or the pool changed: plan ahead.

        ``trajectories`` are all that are open, with and without a home; ``workers`` as for ``place``, but
        perhaps none. Calls of ``place`` for those without a home follow.
        """
        ...

    def place(self, trajectory: TrajectoryView, workers: Sequence[WorkerView]) -> WorkerId:
        """The home of one that has none, among ``workers``: never empty, all ready, in order of their ids."""
        ...

    def rehome(self, trajectory: TrajectoryView, workers: Sequence[WorkerView]) -> WorkerId | None:
        """Another home among ``workers`` before its next step, or ``None`` to stay where it is.

        Asked after its tools, where its home is ready; and while it is queued for memory there, of which it
        holds none, and the other one of two ``workers`` has some. The new home computes the whole context
        anew.
        """
        ...


class Allocator(Protocol):
    """How: which workers, of which parallel degree, a budget is made into."""

    @property
    def name(self) -> str: ...

    def allocate(self, budget: int, expected_tokens: Sequence[int] = ()) -> tuple[WorkerSpec, ...]:
        """Workers that fit ``budget``: the sum of their degrees is at most that, unless all are one.

        ``expected_tokens`` are the lengths of the trajectories that they are for; none: not known. Raises
        ``ConfigError`` where none fit.
        """
        ...


class MoveMeans(StrEnum):
    """How a new home gets the context of a trajectory."""

    RECOMPUTE = "recompute"
    """It computes it again, once the tool has returned."""
    TRANSFER = "transfer"
    """It is copied there while the tool runs; where that is not done in time, the trajectory stays."""


@dataclass(frozen=True, slots=True)
class MigrationProposal:
    """Move this trajectory from ``source`` to ``target`` while its tool runs."""

    trajectory_id: TrajectoryId
    source: WorkerId
    target: WorkerId
    means: MoveMeans = MoveMeans.RECOMPUTE
    urgency: float = 0.0
    """Of two that wait for the same worker the larger goes first: tokens still to generate."""


class MigrationPlanner(Protocol):
    """Whether to move: proposals only; the control plane accepts or refuses each."""

    @property
    def name(self) -> str: ...

    def prepare(self, trajectories: Sequence[TrajectoryView], workers: Sequence[WorkerView]) -> None:
        """A batch was placed or the pool changed: all that are open, and the ready workers with them."""
        ...

    def propose(
        self, in_tool: Sequence[TrajectoryView], workers: Sequence[WorkerView], now: float
    ) -> Iterable[MigrationProposal]:
        """Moves for trajectories whose tools have just started, with estimates renewed after their steps."""
        ...

    def forget(self, trajectory_id: TrajectoryId) -> None:
        """The trajectory ended: whatever is remembered of it may go."""
        ...


@dataclass(frozen=True, slots=True)
class Reshape:
    """Stop some workers and start others on their GPUs, while the rest go on."""

    drain: tuple[WorkerId, ...]
    degrees: tuple[int, ...]
    """Of the workers to start; they need no more GPUs than the drained ones hold."""
    saved_s: float
    """By how much the last trajectory is predicted to end sooner, all costs taken off."""


class Reshaper(Protocol):
    """Whether the pool takes another shape while the last trajectories of a batch run."""

    @property
    def name(self) -> str: ...

    def propose(self, workers: Sequence[WorkerView], start_s: float) -> Reshape | None:
        """What is to become of ``workers``, all ready, if starting a worker takes ``start_s``.

        Asked when a trajectory has finished, a number of times that grows with the logarithm of the batch.
        """
        ...

    def assign(
        self, workers: Sequence[WorkerView], fresh: Collection[WorkerId]
    ) -> Mapping[TrajectoryId, WorkerId]:
        """Who should move to one of ``fresh``, workers that a reshape started and that have come up."""
        ...

    def observe_finished(self, trajectory: TrajectoryView) -> None:
        """The trajectory reached its own end (cancelled and failed ones are not shown)."""
        ...


class LengthPredictor(Protocol):
    """How many tokens a trajectory has still to generate; learns from those that finished."""

    @property
    def name(self) -> str: ...

    def predict(self, trajectories: Sequence[TrajectoryView]) -> Sequence[Prediction | None]:
        """Estimate each from what is known now; ``None`` for those of which nothing is."""
        ...

    def refine(self, trajectory: TrajectoryView, estimate: Prediction) -> Prediction | None:
        """Somebody outside estimated this trajectory: what is to be believed now.

        ``None`` where the estimate is too old to change anything.
        """
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

    @property
    def waiting(self) -> bool:
        """Whether there are endings from which it has yet to learn."""
        ...

    def settle(self) -> None:
        """Learn from a few of the endings that wait: of all its work what nobody has to wait for."""
        ...

    def trust(self) -> Trust | None:
        """How right it has proved lately, measured on what it was shown; ``None`` while that is not known.

        Asked at every batch and every re-planning: placement by length goes only as far as this allows.
        """
        ...

    def save(self) -> JsonWritable:
        """What it has learned, to go on from in another process; open trajectories are not part of it.

        A copy that nothing changes any more, made in a few milliseconds: writing it out is another thread's.
        """
        ...

    def restore(self, state: JsonWritable) -> None:
        """Go on from what ``save`` gave, before anything is predicted. Raises ``ConfigError``."""
        ...
