"""What some migration planners want to know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from heddle.control.ports import MoveMeans
from heddle.planning.profile import Profile
from heddle.types import Trust, WorkerView


def no_trust() -> Trust | None:
    """Nothing was measured."""
    return None


def no_transfers() -> float | None:
    """Prefixes do not travel."""
    return None


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

    def seconds(self, context_tokens: int, target: WorkerView) -> float | None:
        """What a move keeps its trajectory (and, by recomputation, the target) from; ``None``: not known."""
        rate = self.transfer_tokens_per_s()
        if rate is not None:
            return context_tokens / rate
        if self.profile is None:
            return None
        for degree in self.profile.degrees:
            if degree.tp_degree == target.tp_degree and degree.prefill_tokens_per_s:
                return context_tokens / degree.prefill_tokens_per_s
        return None
