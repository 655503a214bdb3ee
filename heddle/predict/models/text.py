"""``text``: hashed TF-IDF and a ridge regression (scikit-learn, extra ``learn``), for machines without a GPU.

It learns what words and pairs of words say beyond the number of finished steps: the mean of each step is
taken off first, unpenalised.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer
from sklearn.linear_model import Ridge

from heddle.errors import ConfigError
from heddle.predict.buckets import Floats
from heddle.predict.models.base import LEVELS, Example, Lesson

DIMENSIONS = 1 << 16

PENALTY = 3.0

MOST_STEPS = 20
"""Numbers of finished steps with a mean of their own."""

_BORROWED = 5.0
"""Weight of the neighbouring step's mean, in examples."""

_FILE = "text.npz"


class Text:
    """Linear in the text."""

    name = "text"

    def __init__(self) -> None:
        self._hash = HashingVectorizer(
            n_features=DIMENSIONS,
            ngram_range=(1, 2),
            alternate_sign=False,
            norm=None,
            token_pattern=r"(?u)\w+|[^\w\s]",
        )
        self._rarity: Floats = np.zeros(0)
        self._weights: Floats = np.zeros(0)
        self._means: Floats = np.zeros(0)
        """By finished steps, the intercept included."""
        self._offsets: Floats = np.zeros(0)
        """Quantiles of the errors."""

    def fit(self, lesson: Lesson) -> None:
        steps = _steps(lesson.examples)
        means = _step_means(steps, lesson.log_remaining)
        counts = self._hash.transform([example.text for example in lesson.examples])
        self._rarity = np.asarray(TfidfTransformer(sublinear_tf=True).fit(counts).idf_)
        words, target = self._weigh(counts), lesson.log_remaining - means[steps]
        ridge = Ridge(alpha=PENALTY, solver="sparse_cg")
        ridge.fit(words, target, lesson.weights / lesson.weights.mean())
        self._weights = np.asarray(ridge.coef_)
        self._means = means + float(ridge.intercept_)
        errors = lesson.log_remaining - self._estimate(words, steps)
        self._offsets = np.quantile(errors, LEVELS)

    def predict(self, examples: Sequence[Example]) -> Floats:
        words = self._weigh(self._hash.transform([example.text for example in examples]))
        estimate = self._estimate(words, _steps(examples))
        return np.maximum(estimate[:, None] + self._offsets, 0.0)

    def save(self, folder: Path) -> None:
        np.savez_compressed(
            folder / _FILE,
            rarity=self._rarity,
            weights=self._weights,
            means=self._means,
            offsets=self._offsets,
        )

    @staticmethod
    def load(folder: Path) -> Text:
        """What ``save`` wrote. Raises ``ConfigError`` that names the file."""
        model, path = Text(), folder / _FILE
        try:
            with np.load(path, allow_pickle=False) as saved:
                model._rarity, model._weights = saved["rarity"], saved["weights"]
                model._means, model._offsets = saved["means"], saved["offsets"]
        except (OSError, KeyError, ValueError, BadZipFile) as exc:
            raise ConfigError(f"cannot read the model {path}: {exc}") from exc
        return model

    def _weigh(self, counts: csr_matrix) -> csr_matrix:
        """TF-IDF with logarithmic frequencies, each text of length 1."""
        weighed = csr_matrix(counts, copy=True)
        weighed.data = (1.0 + np.log(weighed.data)) * self._rarity[weighed.indices]
        norms = np.sqrt(np.asarray(weighed.multiply(weighed).sum(axis=1)).ravel())
        weighed.data /= np.repeat(np.maximum(norms, 1e-12), np.diff(weighed.indptr))
        return weighed

    def _estimate(self, words: csr_matrix, steps: Floats) -> Floats:
        estimate: Floats = np.asarray(words @ self._weights).ravel() + self._means[steps]
        return estimate


def _steps(examples: Sequence[Example]) -> Floats:
    return np.array([min(example.steps_done, MOST_STEPS) for example in examples], dtype=np.intp)


def _step_means(steps: Floats, log_remaining: Floats) -> Floats:
    means = np.empty(MOST_STEPS + 1)
    before = float(log_remaining.mean())
    for step in range(MOST_STEPS + 1):
        own = log_remaining[steps == step]
        before = means[step] = (own.sum() + _BORROWED * before) / (len(own) + _BORROWED)
    return means
