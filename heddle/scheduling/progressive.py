"""Progressive priority scheduling, the paper's section 4.2 and Algorithm 1: longest remaining first.

An adaptive form of longest processing time first. The estimate is renewed after every step, so a trajectory
that turns out long stops paying a wait for each of its many steps.
"""

from __future__ import annotations

from heddle.scheduling.estimate import expected_remaining_tokens
from heddle.types import TrajectoryView


class Progressive:
    """Whoever is expected to go on longest generates first, and takes the slot of a shorter one."""

    name = "progressive"
    predictive = True

    def __init__(self, margin_tokens: float) -> None:
        self.margin: float | None = margin_tokens

    def priority(self, trajectory: TrajectoryView, now: float) -> float:
        """Tokens still expected."""
        return expected_remaining_tokens(trajectory)
