"""``features``: quantile gradient boosting on counts and text statistics (LightGBM, extra ``learn``).

Small trees and few of them: there are rarely more than some hundred trajectories to learn from.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import lightgbm
import numpy as np

from heddle.errors import ConfigError
from heddle.predict.buckets import Floats
from heddle.predict.models.base import LEVELS, Example, Lesson
from heddle.predict.models.statistics import table

ROUNDS = 150

_PARAMETERS = {
    "objective": "quantile",
    "learning_rate": 0.04,
    "num_leaves": 7,
    "min_data_in_leaf": 40,
    "feature_fraction": 0.6,
    "bagging_fraction": 0.7,
    "bagging_freq": 1,
    "lambda_l2": 5.0,
    "seed": 1,
    "deterministic": True,
    "force_row_wise": True,
    "num_threads": 1,
    "verbosity": -1,
}


class Features:
    """One booster for each quantile."""

    name = "features"

    def __init__(self) -> None:
        self._boosters: list[lightgbm.Booster] = []

    def fit(self, lesson: Lesson) -> None:
        rows = table(lesson.examples)
        self._boosters = [
            lightgbm.train(
                _PARAMETERS | {"alpha": level},
                lightgbm.Dataset(rows, lesson.log_remaining, weight=lesson.weights),
                ROUNDS,
            )
            for level in LEVELS
        ]

    def predict(self, examples: Sequence[Example]) -> Floats:
        rows = table(examples)
        quantiles = np.stack([np.asarray(b.predict(rows), dtype=np.float64) for b in self._boosters], axis=1)
        return np.sort(np.maximum(quantiles, 0.0), axis=1)

    def save(self, folder: Path) -> None:
        for level, booster in zip(LEVELS, self._boosters, strict=True):
            (folder / f"features-{level}.txt").write_text(booster.model_to_string(), encoding="utf-8")

    @staticmethod
    def load(folder: Path) -> Features:
        """What ``save`` wrote. Raises ``ConfigError`` that names the file."""
        model = Features()
        for level in LEVELS:
            path = folder / f"features-{level}.txt"
            try:
                model._boosters.append(lightgbm.Booster(model_str=path.read_text(encoding="utf-8")))
            except (OSError, UnicodeDecodeError, lightgbm.basic.LightGBMError) as exc:
                raise ConfigError(f"cannot read the model {path}: {exc}") from exc
        return model
