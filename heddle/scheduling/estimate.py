"""What schedulers by length take for the rest of a trajectory, also where nobody predicted it."""

from __future__ import annotations

from heddle.types import TrajectoryView


def expected_remaining_tokens(trajectory: TrajectoryView) -> float:
    """The predicted rest. Without a prediction as much again as it has generated so far.

    Lengths are long-tailed: whoever has come far is likely to go far, and what outlives everything that a
    predictor has seen has no prediction at all.
    """
    predicted = trajectory.predicted_remaining_tokens
    return float(trajectory.generated_tokens) if predicted is None else predicted
