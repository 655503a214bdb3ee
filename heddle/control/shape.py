"""What is known of the pool's shape beside its workers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum


class ReshapeOutcome(StrEnum):
    """What became of changes of the pool's shape."""

    ORDERED = "ordered"
    """Workers were told to go and others to start in their place."""
    DONE = "done"
    """The others came up."""
    FAILED = "failed"
    """One of them did not, or was lost for good: the pool grows back."""
    RESTORED = "restored"
    """The workers that had gone were ordered back."""


@dataclass(slots=True, eq=False)
class PoolShape:
    """Totals, and what the next reshape goes by."""

    outcomes: Counter[ReshapeOutcome] = field(default_factory=Counter)
    start_s: float | None = None
    """What a worker that a reshape started last took to come up, its wait for GPUs included."""
    weights_reloadable: bool = True
    """Whether a worker that starts now can load the weights that serve."""
