"""Least attained service first, over whole trajectories, in the levels of a multilevel queue.

What Autellix does for agents' programs: no prediction, short ones overtake long ones. A trajectory sinks by
a level each time its attained service has doubled; within a level it is first come, first served, so that
nearly equal trajectories do not take turns for every token. A running step keeps the level with which it
began: service is counted when a generation ends.
"""

from __future__ import annotations

from heddle.types import TrajectoryView

FIRST_QUANTUM_TOKENS = 64
"""Service within the highest level; level k ends at ``2**k`` times as much."""


class Autellix:
    """Lower levels rank higher, and take the slots of higher ones."""

    name = "autellix"
    margin: float | None = 0.0
    """One level is lead enough: levels are whole numbers."""
    predictive = False

    def priority(self, trajectory: TrajectoryView, now: float) -> float:
        """The negated level: 0 for a trajectory that has generated little."""
        return -float((trajectory.generated_tokens // FIRST_QUANTUM_TOKENS).bit_length())
