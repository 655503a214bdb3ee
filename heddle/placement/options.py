"""What some placers want to know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from heddle.planning.profile import Profile
from heddle.types import Trust


def no_trust() -> Trust | None:
    """Nothing was measured."""
    return None


@dataclass(frozen=True, slots=True)
class PlacerOptions:
    """Defaults suit every placer that does not plan by length."""

    profile: Profile | None = None
    """Step times of the workers, by parallel degree."""
    trust: Callable[[], Trust | None] = no_trust
    """How right the predictor has proved lately."""
    seed: int = 0
    """Of searches."""
