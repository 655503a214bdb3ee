"""Scores of predictions: over all points, and for each number of finished steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heddle.predict.buckets import Floats
from heddle.predict.evaluation.stream import Said
from heddle.predict.trust import pearson, spearman, tail_recall

FEWEST = 10
"""Points of which a score is given."""


@dataclass(frozen=True, slots=True)
class Score:
    """Of the predictions made after one number of steps, or of all. Correlations are of log(1 + tokens)."""

    points: int
    recall_10: float
    """Of the longest tenth, the share predicted to be in it."""
    recall_20: float
    pearson: float
    spearman: float
    pinball: float
    """Mean pinball loss of the quantiles 0.1, 0.5 and 0.9 of log(1 + tokens)."""
    coverage_80: float
    """Share of true lengths between the quantiles 0.1 and 0.9."""
    coverage_90: float | None
    """Between 0.05 and 0.95; ``None`` where the predictor does not tell them."""


def score(said: Sequence[Said]) -> Score | None:
    """``None`` for fewer than ``FEWEST`` points. What was not predicted counts as no tokens at all."""
    if len(said) < FEWEST:
        return None
    true = np.log1p([s.remaining_tokens for s in said])
    predictions = [s.prediction for s in said]
    low, median, high = quantiles = np.log1p(
        [(p.low_tokens, p.remaining_tokens, p.high_tokens) if p else (0.0, 0.0, 0.0) for p in predictions]
    ).T
    losses = [_pinball(true - q, level) for q, level in zip(quantiles, (0.1, 0.5, 0.9), strict=True)]
    return Score(
        points=len(said),
        recall_10=tail_recall(median, true, 0.1),
        recall_20=tail_recall(median, true, 0.2),
        pearson=pearson(median, true),
        spearman=spearman(median, true),
        pinball=float(np.mean(losses)),
        coverage_80=float(np.mean((low <= true + 1e-9) & (true <= high + 1e-9))),
        coverage_90=_outer_coverage(said),
    )


def by_step(said: Sequence[Said]) -> dict[int, Score]:
    """Score of each number of finished steps that enough trajectories reached."""
    groups: dict[int, list[Said]] = {}
    for one in said:
        groups.setdefault(one.steps_done, []).append(one)
    scored = {steps: score(group) for steps, group in sorted(groups.items())}
    return {steps: found for steps, found in scored.items() if found is not None}


def calibration(said: Sequence[Said]) -> dict[float, float]:
    """Share of true lengths at or below each quantile that is told: the level itself where all is well."""
    below: dict[float, list[bool]] = {}
    for one in said:
        p = one.prediction
        if p is None:
            continue
        levels = {0.05: p.least_tokens, 0.1: p.low_tokens, 0.5: p.remaining_tokens, 0.9: p.high_tokens}
        for level, tokens in (levels | {0.95: p.most_tokens}).items():
            if tokens is not None:
                below.setdefault(level, []).append(one.remaining_tokens <= tokens + 0.5)
    return {level: float(np.mean(hits)) for level, hits in below.items()}


def _pinball(difference: Floats, level: float) -> float:
    return float(np.mean(np.maximum(level * difference, (level - 1.0) * difference)))


def _outer_coverage(said: Sequence[Said]) -> float | None:
    inside: list[bool] = []
    for one in said:
        p = one.prediction
        if p is not None and p.least_tokens is not None and p.most_tokens is not None:
            inside.append(p.least_tokens - 0.5 <= one.remaining_tokens <= p.most_tokens + 0.5)
    return float(np.mean(inside)) if inside else None
