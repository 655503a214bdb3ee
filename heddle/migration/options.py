"""What some migration planners want to know, and what a move costs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from heddle.control.ports import MoveMeans
from heddle.planning.profile import Profile
from heddle.types import TrajectoryView, Trust, WorkerView

HIDDEN_SHARE = 0.1
"""Of a transfer that the tools hide what it costs all the same: both workers copy beside their work."""


def no_trust() -> Trust | None:
    """Nothing was measured."""
    return None


def no_transfers() -> float | None:
    """Prefixes do not travel."""
    return None


@dataclass(frozen=True, slots=True)
class MovePrice:
    """The cheapest way to move a trajectory."""

    seconds: float
    """That it keeps its trajectory (and, by recomputation, the target) from going on."""
    means: MoveMeans


@dataclass(frozen=True, slots=True)
class MigrationOptions:
    """Defaults suit a planner that moves nobody."""

    profile: Profile | None = None
    """Step times and prefill rates of the workers, by parallel degree."""
    transfer_tokens_per_s: Callable[[], float | None] = no_transfers
    """How fast a prefix travels between two workers; ``None``: it does not, and moves compute it anew."""
    trust: Callable[[], Trust | None] = no_trust
    """How right the predictor has proved lately."""

    @property
    def means(self) -> MoveMeans:
        """By transfer wherever that is possible: it goes on beside the tools."""
        return MoveMeans.RECOMPUTE if self.transfer_tokens_per_s() is None else MoveMeans.TRANSFER

    def price(self, trajectory: TrajectoryView, target: WorkerView) -> MovePrice | None:
        """Of moving it now, while its tools run; ``None``: not possible, or not known.

        A transfer that would outlast the tools is none: it would be broken off when they return.
        """
        ways = []
        transfer_s = self._transfer_s(trajectory)
        if transfer_s is not None:
            ways.append(MovePrice(transfer_s, MoveMeans.TRANSFER))
        prefill_rate = self._prefill_rate(target.tp_degree)
        if prefill_rate:
            ways.append(MovePrice(trajectory.context_tokens / prefill_rate, MoveMeans.RECOMPUTE))
        return min(ways, key=lambda way: way.seconds, default=None)

    def token_s(self, tp_degree: int) -> float:
        """Of moving one token of context in the cheaper way, if no tool hides any of it.

        ``tp_degree`` is of a worker that would compute it anew. Infinite where neither way is known.
        """
        rates = [self.transfer_tokens_per_s(), self._prefill_rate(tp_degree)]
        return min((1.0 / rate for rate in rates if rate), default=math.inf)

    def _transfer_s(self, trajectory: TrajectoryView) -> float | None:
        rate = self.transfer_tokens_per_s()
        if rate is None:
            return None
        seconds = trajectory.context_tokens / rate
        hidden_s = expected_tool_s(trajectory)
        if hidden_s is None:
            return seconds
        return HIDDEN_SHARE * seconds if seconds <= hidden_s else None

    def _prefill_rate(self, tp_degree: int) -> float | None:
        if self.profile is None:
            return None
        rates = (d.prefill_tokens_per_s for d in self.profile.degrees if d.tp_degree == tp_degree)
        return next(rates, None)


def expected_tool_s(trajectory: TrajectoryView) -> float | None:
    """How long the tools that have just started will run; ``None`` where nothing tells.

    What is predicted of all its tools, evenly over its steps; without a prediction what its own took so far.
    """
    prediction = trajectory.prediction
    if prediction is not None and prediction.tool_seconds is not None and prediction.remaining_steps:
        return prediction.tool_seconds / max(1.0, prediction.remaining_steps)
    earlier = trajectory.steps_done - 1
    return trajectory.tool_seconds / earlier if earlier > 0 else None
