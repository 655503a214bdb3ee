"""Online ridge regression: which evidence counts for how much, learned from what finished.

Kept as sums of products, so that memory does not grow and a finished trajectory costs one small matrix
product. Columns are centred and scaled by what was seen, weights are pulled towards a prior, and old
observations fade.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heddle.predict.buckets import Floats

HALF_LIFE = 1000.0
"""Finished trajectories after which an observation counts half."""

PULL = 1000.0
"""Observations that the prior weights count for: some hundreds of trajectories. Fewer, and a small workload
overrules sources that it has hardly seen."""

STAGE_PULL = 300.0
"""Observations that the weights of all steps count for in those of a stage."""

STAGE_STARTS = (1.0, 3.0, 6.0)
"""Finished steps at which a stage begins, after the first."""

STAGES = len(STAGE_STARTS) + 1

_STARTS = np.array(STAGE_STARTS)
_FADE = 0.5 ** (1.0 / HALF_LIFE)


def stage_of(steps_done: Floats) -> Floats:
    """The stage of each number of finished steps: from the prompt alone, early, late."""
    return np.searchsorted(_STARTS, steps_done, side="right").astype(np.float64)


@dataclass(slots=True)
class Sums:
    """Sums of products of rows (1, columns..., target)."""

    products: Floats

    @staticmethod
    def empty(columns: int) -> Sums:
        """Nothing seen yet."""
        return Sums(np.zeros((columns + 2, columns + 2)))

    def add(self, rows: Floats, targets: Floats, weights: Floats) -> None:
        """``rows``: shape (n, columns); each counts as its weight."""
        full = np.empty((len(rows), rows.shape[1] + 2))
        full[:, 0], full[:, 1:-1], full[:, -1] = 1.0, rows, targets
        self.products += full.T @ (weights[:, None] * full)

    def solve(self, prior: Floats, pull: float) -> Line:
        """Weights pulled towards ``prior``; the intercept is free."""
        n = self.products[0, 0]
        if n <= 0.0:
            return Line(0.0, prior)
        means = self.products[0, 1:] / n
        spread = self.products[1:, 1:] / n - np.outer(means, means)
        scale = np.sqrt(np.maximum(np.diag(spread)[:-1], 1e-6))
        gram = spread[:-1, :-1] / np.outer(scale, scale)
        gram[np.diag_indices_from(gram)] += pull / n
        wanted = spread[:-1, -1] / scale + (pull / n) * prior * scale
        weights = np.linalg.solve(gram, wanted) / scale
        return Line(float(means[-1] - means[:-1] @ weights), weights)


@dataclass(frozen=True, slots=True)
class Line:
    """A linear estimate."""

    intercept: float
    weights: Floats


class OnlineRidge:
    """One line for each stage of a trajectory, pulled towards the line of all."""

    def __init__(self, prior: Floats) -> None:
        self._prior = prior
        self._all = Sums.empty(len(prior))
        self._stages = [Sums.empty(len(prior)) for _ in range(STAGES)]
        self._solved: tuple[Floats, Floats] | None = None

    def learn(self, rows: Floats, targets: Floats, stages: Floats, weights: Floats, endings: int) -> None:
        """The points of a few finished trajectories: shape (n, columns), and (n,) for the others."""
        for sums in (self._all, *self._stages):
            sums.products *= _FADE**endings
        self._all.add(rows, targets, weights)
        for stage, sums in enumerate(self._stages):
            chosen = stages == stage
            if chosen.any():
                sums.add(rows[chosen], targets[chosen], weights[chosen])
        self._solved = None

    def predict(self, rows: Floats, stages: Floats) -> Floats:
        """Shape (n,)."""
        if self._solved is None:
            self._solved = self._solve()
        intercepts, weights = self._solved
        chosen = stages.astype(np.intp)
        estimate: Floats = intercepts[chosen] + np.einsum("ij,ij->i", rows, weights[chosen])
        return estimate

    def relearn(self, share: float) -> None:
        """Let everything seen so far count only this share."""
        for sums in (self._all, *self._stages):
            sums.products *= share
        self._solved = None

    def save(self) -> list[list[list[float]]]:
        """The sums of all steps, then those of each stage."""
        return [sums.products.tolist() for sums in (self._all, *self._stages)]

    def restore(self, saved: list[list[list[float]]]) -> bool:
        """False where the sums are of other columns."""
        arrays = [np.array(products, dtype=np.float64) for products in saved]
        if [array.shape for array in arrays] != [self._all.products.shape] * (STAGES + 1):
            return False
        self._all, *self._stages = [Sums(array) for array in arrays]
        self._solved = None
        return True

    def _solve(self) -> tuple[Floats, Floats]:
        line = self._all.solve(self._prior, PULL)
        lines = [sums.solve(line.weights, STAGE_PULL) for sums in self._stages]
        return np.array([ln.intercept for ln in lines]), np.stack([ln.weights for ln in lines])
