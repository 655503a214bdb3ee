"""How many tokens a trajectory has still to generate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from heddle.control.ports import LengthPredictor
from heddle.errors import ConfigError
from heddle.predict.mean_by_step import MeanByStep
from heddle.predict.oracle import NoisyOracle, Oracle
from heddle.predict.progressive import Progressive
from heddle.predict.sources import Source
from heddle.predict.sources.external import ExternalModel
from heddle.predict.sources.numbers import Numbers
from heddle.predict.sources.prompt_history import PromptHistory
from heddle.predict.sources.siblings import Siblings
from heddle.predict.sources.tool_state import StepSize, ToolState

PREDICTION_ERROR = 0.5
"""Of the noisy oracle: two thirds of its estimates are within a factor of 1.65."""


@dataclass(frozen=True, slots=True)
class PredictorOptions:
    """What some predictors want to know."""

    error: float = PREDICTION_ERROR
    """Standard deviation of the logarithm of ``noisy_oracle``'s factor."""
    seed: int = 0


MODELS: Mapping[str, float] = {"features": 0.8, "text": 0.3, "qwen": 0.5}
"""Models outside of the control plane whose estimates ``progressive`` takes for evidence, and what each
counts for before anything is learned of it."""


def all_sources() -> Sequence[Source]:
    """Every kind of evidence, each knowing nothing yet."""
    cheap = (PromptHistory(), Siblings(), ToolState(), StepSize(), Numbers())
    return (*cheap, *(ExternalModel(name, weight) for name, weight in MODELS.items()))


def _model_alone(name: str, options: PredictorOptions) -> LengthPredictor:
    return Progressive(name, lambda: (ExternalModel(name, 1.0),))


PREDICTORS: Mapping[str, Callable[[PredictorOptions], LengthPredictor]] = {
    "mean_by_step": lambda options: MeanByStep(),
    "oracle": lambda options: Oracle(),
    "noisy_oracle": lambda options: NoisyOracle(error=options.error, seed=options.seed),
    "progressive": lambda options: Progressive("progressive", all_sources),
    "prompt_history": lambda options: Progressive("prompt_history", lambda: (PromptHistory(),)),
    "siblings": lambda options: Progressive("siblings", lambda: (Siblings(),)),
    "tool_state": lambda options: Progressive("tool_state", lambda: (ToolState(), StepSize())),
    **{name: partial(_model_alone, name) for name in MODELS},
}


def make_predictor(name: str, options: PredictorOptions = PredictorOptions()) -> LengthPredictor:
    """The predictor of this name. Raises ``ConfigError`` that lists the names there are."""
    make = PREDICTORS.get(name)
    if make is None:
        raise ConfigError(f"unknown predictor {name!r}; choose one of {', '.join(PREDICTORS)}")
    return make(options)
