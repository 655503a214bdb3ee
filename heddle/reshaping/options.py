"""What a reshaper wants to know of workers that do not exist yet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from heddle.planning.profile import Profile
from heddle.types import Trust


@dataclass(frozen=True, slots=True)
class ReshapingOptions:
    """Of one control plane."""

    profile: Profile | None
    """Step times and prefill rates by degree; its degrees are those that a worker can have."""
    slots: Callable[[int], int]
    """Of a worker of a degree."""
    transfer_tokens_per_s: Callable[[], float | None]
    """How fast a prefix travels between two workers; ``None``: it does not, and moves compute it anew."""
    trust: Callable[[], Trust | None]
    """How right the predictor has proved lately."""
