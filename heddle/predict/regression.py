"""Online ridge regression: which evidence counts for how much, learned from what finished.

Several targets share one set of evidence, and so the costly sums.

Kept as sums of products, so that memory does not grow and a finished trajectory costs one small matrix
product. Columns are centred and scaled by what was seen, weights are pulled towards a prior, and old
observations fade.
"""

from __future__ import annotations

import numpy as np

from heddle.predict.buckets import STAGES, Floats, Ints

HALF_LIFE = 1000.0
"""Finished trajectories after which an observation counts half."""

PULL = 1000.0
"""Observations that the prior weights count for: some hundreds of trajectories. Fewer, and a small workload
overrules sources that it has hardly seen."""

STAGE_PULL = 300.0
"""Observations that the weights of all steps count for in those of a stage."""

TARGETS = 2

_NOTHING = 1e-9
"""Observations that stand for none, so that the prior alone decides."""

_FADE = 0.5 ** (1.0 / HALF_LIFE)


class OnlineRidge:
    """One line for each stage of a trajectory, pulled towards the line of all.

    Targets: the deviation of the logarithm of what remains, and by which share the tokens exceed their mean:
    the same thing, where both are small, so that the prior weights are those of both.
    """

    def __init__(self, prior: Floats) -> None:
        size = 1 + len(prior) + TARGETS
        self._prior = np.repeat(prior[:, None], TARGETS, axis=1)
        self._sums = np.zeros((STAGES, size, size))
        """Of each stage: products of rows (1, columns..., targets...)."""
        self._solved: tuple[Floats, Floats] | None = None

    @property
    def columns(self) -> int:
        """Of a row of evidence."""
        return len(self._prior)

    def learn(self, rows: Floats, targets: Floats, stages: Ints, weights: Floats, endings: int) -> None:
        """The points of a few finished trajectories: ``rows`` (n, columns), ``targets`` (n, ``TARGETS``), and
        (n,) for the others; each counts as its weight."""
        self._sums *= _FADE**endings
        full = np.concatenate((np.ones((len(rows), 1)), rows, targets), axis=1)
        weighed = weights[:, None] * full
        for stage in range(STAGES):
            chosen = stages == stage
            if chosen.any():
                self._sums[stage] += full[chosen].T @ weighed[chosen]
        self._solved = None

    def predict(self, rows: Floats, stages: Ints) -> Floats:
        """Shape (n, ``TARGETS``)."""
        if self._solved is None:
            _, common = _solve(self._sums.sum(axis=0, keepdims=True), self._prior, PULL)
            self._solved = _solve(self._sums, common, STAGE_PULL)
        intercepts, weights = self._solved
        estimate: Floats = intercepts[stages] + np.einsum("ij,ijk->ik", rows, weights[stages])
        return estimate

    def relearn(self, share: float) -> None:
        """Let everything seen so far count only this share."""
        self._sums *= share
        self._solved = None

    def save(self) -> list[list[list[float]]]:
        """The sums of each stage."""
        saved: list[list[list[float]]] = self._sums.tolist()
        return saved

    def restore(self, saved: list[list[list[float]]]) -> bool:
        """False where the sums are of other columns."""
        size = self._sums.shape[1]
        lengths = {len(row) for matrix in saved for row in matrix} | set(map(len, saved))
        if len(saved) != STAGES or lengths != {size}:
            return False
        self._sums, self._solved = np.array(saved, dtype=np.float64), None
        return True


def _solve(sums: Floats, prior: Floats, pull: float) -> tuple[Floats, Floats]:
    """Intercepts (k, ``TARGETS``), which are free, and weights (k, columns, ``TARGETS``), pulled towards
    ``prior``; ``sums``: shape (k, size, size)."""
    n = np.maximum(sums[:, :1, :1], _NOTHING)
    means = sums[:, :1, 1:] / n
    evidence, targets = means[:, :, :-TARGETS], means[:, :, -TARGETS:]
    spread = sums[:, 1:-TARGETS, 1:] / n - evidence.transpose(0, 2, 1) * means
    diagonal = spread.diagonal(axis1=1, axis2=2)
    scale = np.sqrt(np.maximum(diagonal, 1e-6))[:, :, None]
    pulled = pull / n
    gram = spread[:, :, :-TARGETS] / (scale * scale.transpose(0, 2, 1))
    gram.reshape(len(gram), -1)[:, :: gram.shape[-1] + 1] += pulled[:, 0]
    wanted = spread[:, :, -TARGETS:] / scale + pulled * prior * scale
    weights = np.linalg.solve(gram, wanted) / scale
    intercepts = targets - evidence @ weights
    return intercepts[:, 0, :], weights
