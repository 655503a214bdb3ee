"""What is known and predicted of lengths: the part of the shared vocabulary that predictors speak.

Exported by ``heddle.types``, and under the same rules.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepView:
    """What a decision may know of one finished step."""

    output_tokens: int = 0
    tool_names: tuple[str, ...] = ()
    """In the order of the calls; empty where there were none, or none yet."""
    tool_outcomes: tuple[str, ...] = ()
    """Of each call; empty while they run."""
    tool_seconds: float | None = None
    """``None`` while they run."""
    appended_tokens: int = 0
    """Of the observation."""


NO_STEP = StepView()


@dataclass(frozen=True, slots=True)
class Prediction:
    """Tokens that a trajectory has still to generate, as the quantiles 0.1, 0.5 and 0.9."""

    remaining_tokens: float
    low_tokens: float
    high_tokens: float
    made_after_step: int
    """Number of finished steps when it was made; 0 is from the prompt alone."""
    model: str
    """Its source."""
    least_tokens: float | None = None
    """With ``most_tokens``, the quantiles 0.05 and 0.95: the interval that holds nine of ten. ``None`` where
    the source does not calibrate one."""
    most_tokens: float | None = None
    expected_tokens: float | None = None
    """The mean, which the tail decides: by it the longest are told, where ``remaining_tokens`` ranks all.
    ``None`` where the source does not tell."""
    remaining_steps: float | None = None
    """Expected number of steps still to generate; ``None`` where the source does not tell."""
    tool_seconds: float | None = None
    """Expected seconds still to be spent in tools; ``None`` where the source does not tell."""


@dataclass(frozen=True, slots=True)
class Trust:
    """How right a predictor has proved on trajectories that finished lately: measured, never claimed.

    Lengths here are total sampled tokens, the predicted ones as they were before the first step or soon after
    it, when placement relies on them.
    """

    tail_recall: float
    """Of the longest fifth those that were predicted among the longest fifth; 0 to 1."""
    rank_correlation: float
    """Spearman's, between predicted and true lengths; -1 to 1."""
    coverage: float
    """Share of true lengths between the predicted quantiles 0.1 and 0.9: 0.8 for a calibrated predictor."""
    samples: int
    """Finished trajectories that it was measured on."""
