"""How many tokens a trajectory has still to generate."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from heddle.control.ports import LengthPredictor
from heddle.errors import ConfigError
from heddle.predict.mean_by_step import MeanByStep

PREDICTORS: Mapping[str, Callable[[], LengthPredictor]] = {"mean_by_step": MeanByStep}


def make_predictor(name: str) -> LengthPredictor:
    """The predictor of this name. Raises ``ConfigError`` that lists the names there are."""
    make = PREDICTORS.get(name)
    if make is None:
        raise ConfigError(f"unknown predictor {name!r}; choose one of {', '.join(PREDICTORS)}")
    return make()
