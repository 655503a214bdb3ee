"""Predictors that know: for replays of recorded lengths, as upper bounds and to try out an error.

They read ``known_total_tokens``, which only a replay has; of any other trajectory they know nothing.
"""

from __future__ import annotations

import math
import random
from abc import abstractmethod
from collections.abc import Sequence

from heddle.errors import ConfigError
from heddle.predict.passive import Passive
from heddle.types import Prediction, TrajectoryId, TrajectoryView, Trust

_QUANTILE_Z = 1.2815515655446004
"""Of the standard normal distribution at 0.9."""
MOST_ERROR = 5.0
"""Of a noisy oracle: there one estimate in three is wrong by more than a factor of 148."""


class _FromKnownTotal(Passive):
    """What both have in common: nothing is learned, and what ends is forgotten by itself."""

    def predict(self, trajectories: Sequence[TrajectoryView]) -> Sequence[Prediction | None]:
        """``None`` for what is not a replay."""
        return [
            None if known is None else self._of(trajectory, known)
            for trajectory in trajectories
            for known in (trajectory.known_total_tokens,)
        ]

    @abstractmethod
    def _of(self, trajectory: TrajectoryView, known_tokens: int) -> Prediction: ...

    def _prediction(self, trajectory: TrajectoryView, total: float, spread: float) -> Prediction:
        done = trajectory.generated_tokens
        return Prediction(
            remaining_tokens=max(0.0, total - done),
            low_tokens=max(0.0, total / spread - done),
            high_tokens=max(0.0, total * spread - done),
            made_after_step=trajectory.steps_done,
            model=self.name,
        )


class Oracle(_FromKnownTotal):
    """Exact."""

    name = "oracle"

    def trust(self) -> Trust | None:
        """Full, on as many samples as anybody may want: it reads what will be."""
        return Trust(tail_recall=1.0, rank_correlation=1.0, coverage=1.0, samples=1 << 30)

    def _of(self, trajectory: TrajectoryView, known_tokens: int) -> Prediction:
        return self._prediction(trajectory, float(known_tokens), 1.0)


class NoisyOracle(_FromKnownTotal):
    """Wrong by a factor that each trajectory keeps for life: log-normal, median 1, ``error`` its log's sigma.

    An error of 0.5 is within a factor of 1.65 for two thirds of all trajectories. The factor follows from the
    seed and the trajectory's id alone. One that outlives its estimate is expected to go on for as long as it
    already has times ``error``: never to be at its end.
    """

    name = "noisy_oracle"

    def __init__(self, *, error: float, seed: int) -> None:
        if not 0.0 <= error <= MOST_ERROR:
            raise ConfigError(f"predictor_error must be 0 to {MOST_ERROR:g}, got {error}")
        self._error = error
        self._seed = seed

    def _of(self, trajectory: TrajectoryView, known_tokens: int) -> Prediction:
        total = known_tokens * math.exp(self._error * self._normal(trajectory.trajectory_id))
        total = max(total, trajectory.generated_tokens * (1.0 + self._error))
        return self._prediction(trajectory, total, math.exp(_QUANTILE_Z * self._error))

    def _normal(self, trajectory_id: TrajectoryId) -> float:
        """A standard normal number that belongs to this trajectory."""
        return random.Random(f"{self._seed}/{trajectory_id}").gauss(0.0, 1.0)
