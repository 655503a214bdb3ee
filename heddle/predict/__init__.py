"""How many tokens a trajectory has still to generate. Predictors that learn are imported when chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from heddle.control.ports import LengthPredictor
from heddle.errors import ConfigError
from heddle.predict.mean_by_step import MeanByStep
from heddle.predict.oracle import NoisyOracle, Oracle

if TYPE_CHECKING:
    from heddle.predict.sources import Source

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
    from heddle.predict.sources.numbers import Numbers

    cheap = (*_prompt_history(), *_siblings(), *_tool_state(), Numbers())
    return (*cheap, *(source for name, weight in MODELS.items() for source in _model(name, weight)))


def _prompt_history() -> Sequence[Source]:
    from heddle.predict.sources.prompt_history import PromptHistory

    return (PromptHistory(),)


def _siblings() -> Sequence[Source]:
    from heddle.predict.sources.siblings import Siblings

    return (Siblings(),)


def _tool_state() -> Sequence[Source]:
    from heddle.predict.sources.tool_state import StepSize, ToolState

    return ToolState(), StepSize()


def _model(name: str, weight: float = 1.0) -> Sequence[Source]:
    from heddle.predict.sources.external import ExternalModel

    return (ExternalModel(name, weight),)


def _progressive(
    name: str, make_sources: Callable[[], Sequence[Source]], options: PredictorOptions
) -> LengthPredictor:
    from heddle.predict.progressive import Progressive

    return Progressive(name, make_sources)


PREDICTORS: Mapping[str, Callable[[PredictorOptions], LengthPredictor]] = {
    "mean_by_step": lambda options: MeanByStep(),
    "oracle": lambda options: Oracle(),
    "noisy_oracle": lambda options: NoisyOracle(error=options.error, seed=options.seed),
    "progressive": partial(_progressive, "progressive", all_sources),
    "prompt_history": partial(_progressive, "prompt_history", _prompt_history),
    "siblings": partial(_progressive, "siblings", _siblings),
    "tool_state": partial(_progressive, "tool_state", _tool_state),
    **{name: partial(_progressive, name, partial(_model, name)) for name in MODELS},
}


def make_predictor(name: str, options: PredictorOptions = PredictorOptions()) -> LengthPredictor:
    """The predictor of this name. Raises ``ConfigError`` that lists the names there are."""
    make = PREDICTORS.get(name)
    if make is None:
        raise ConfigError(f"unknown predictor {name!r}; choose one of {', '.join(PREDICTORS)}")
    return make(options)
