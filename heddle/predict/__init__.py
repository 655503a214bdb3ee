"""How many tokens a trajectory has still to generate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from heddle.control.ports import LengthPredictor
from heddle.errors import ConfigError
from heddle.predict.mean_by_step import MeanByStep
from heddle.predict.oracle import NoisyOracle, Oracle

PREDICTION_ERROR = 0.5
"""Of the noisy oracle: two thirds of its estimates are within a factor of 1.65."""


@dataclass(frozen=True, slots=True)
class PredictorOptions:
    """What some predictors want to know."""

    error: float = PREDICTION_ERROR
    """Standard deviation of the logarithm of ``noisy_oracle``'s factor."""
    seed: int = 0


PREDICTORS: Mapping[str, Callable[[PredictorOptions], LengthPredictor]] = {
    "mean_by_step": lambda options: MeanByStep(),
    "oracle": lambda options: Oracle(),
    "noisy_oracle": lambda options: NoisyOracle(error=options.error, seed=options.seed),
}


def make_predictor(name: str, options: PredictorOptions = PredictorOptions()) -> LengthPredictor:
    """The predictor of this name. Raises ``ConfigError`` that lists the names there are."""
    make = PREDICTORS.get(name)
    if make is None:
        raise ConfigError(f"unknown predictor {name!r}; choose one of {', '.join(PREDICTORS)}")
    return make(options)
