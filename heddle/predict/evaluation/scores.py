"""Scores of predictions: over all points, for each number of finished steps, and for the same trajectories.

The longest are told by the mean of the remaining tokens where the predictor tells one, since the mean is what
the long ones decide; everything else by the median. Beside it stands the recall by the other statistics, so
that a baseline may be taken by its best.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from heddle.predict.buckets import Floats
from heddle.predict.evaluation.stream import Said
from heddle.predict.trust import pearson, spearman, tail_recall
from heddle.types import Prediction, TrajectoryId

FEWEST = 10
"""Points of which a score is given."""

RESAMPLES = 400


@dataclass(frozen=True, slots=True)
class Score:
    """Of the predictions made after one number of steps, or of all. Correlations are of log(1 + tokens)."""

    points: int
    recall_10: float
    """Of the longest tenth, the share predicted to be in it, by the mean."""
    recall_10_by_median: float
    recall_10_by_high: float
    """By the quantile 0.9."""
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
    mean = np.array([_mean(p) if p else 0.0 for p in predictions])
    losses = [_pinball(true - q, level) for q, level in zip(quantiles, (0.1, 0.5, 0.9), strict=True)]
    return Score(
        points=len(said),
        recall_10=tail_recall(mean, true, 0.1),
        recall_10_by_median=tail_recall(median, true, 0.1),
        recall_10_by_high=tail_recall(high, true, 0.1),
        recall_20=tail_recall(mean, true, 0.2),
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


@dataclass(frozen=True, slots=True)
class Interval:
    """That holds a score in nine of ten samples of the prompts."""

    low: float
    high: float


def recall_interval(said: Sequence[Said]) -> Interval | None:
    """Of ``recall_10``: prompts are drawn with replacement. ``None`` where there is no score."""
    if len(said) < FEWEST:
        return None
    true = np.array([float(s.remaining_tokens) for s in said])
    mean = np.array([_mean(s.prediction) if s.prediction else 0.0 for s in said])
    _, prompts = np.unique([s.prompt_id for s in said], return_inverse=True)
    positions = [np.flatnonzero(prompts == prompt) for prompt in range(prompts.max() + 1)]
    rng = np.random.default_rng(0)
    found = []
    for _ in range(RESAMPLES):
        drawn = np.concatenate([positions[i] for i in rng.integers(len(positions), size=len(positions))])
        found.append(tail_recall(mean[drawn], true[drawn], 0.1))
    low, high = np.quantile(found, (0.05, 0.95)).tolist()
    return Interval(low, high)


@dataclass(frozen=True, slots=True)
class SameScore:
    """Of the same trajectories after a number of steps that all of them reached."""

    trajectories: int
    remaining: float
    """Spearman's correlation of the tokens that remain."""
    whole: float
    """Of the tokens of the whole trajectory."""
    whole_recall_20: float
    """Of the longest fifth by the whole, the share predicted to be in it."""


def of_the_same(said: Sequence[Said]) -> dict[int, SameScore]:
    """By finished steps, up to the last that half of all trajectories reached: those alone that did."""
    reached: dict[TrajectoryId, int] = {}
    for one in said:
        reached[one.trajectory_id] = max(reached.get(one.trajectory_id, 0), one.steps_done)
    deepest = int(np.quantile(list(reached.values()), 0.5, method="lower")) if reached else 0
    groups: dict[int, list[Said]] = {}
    for one in said:
        if one.steps_done <= deepest <= reached[one.trajectory_id]:
            groups.setdefault(one.steps_done, []).append(one)
    return {steps: _same(group) for steps, group in sorted(groups.items()) if len(group) >= FEWEST}


def _same(said: Sequence[Said]) -> SameScore:
    done = np.array([float(s.generated_tokens) for s in said])
    true = np.array([float(s.remaining_tokens) for s in said])
    median = np.array([s.prediction.remaining_tokens if s.prediction else 0.0 for s in said])
    mean = np.array([_mean(s.prediction) if s.prediction else 0.0 for s in said])
    return SameScore(
        trajectories=len(said),
        remaining=spearman(median, true),
        whole=spearman(done + median, done + true),
        whole_recall_20=tail_recall(done + mean, done + true, 0.2),
    )


def mean_score(scores: Sequence[Score]) -> Score:
    """Mean of each number; at least one score."""
    outer = [s.coverage_90 for s in scores if s.coverage_90 is not None]

    def mean(of: Callable[[Score], float]) -> float:
        return float(np.mean([of(s) for s in scores]))

    return Score(
        points=round(mean(lambda s: s.points)),
        recall_10=mean(lambda s: s.recall_10),
        recall_10_by_median=mean(lambda s: s.recall_10_by_median),
        recall_10_by_high=mean(lambda s: s.recall_10_by_high),
        recall_20=mean(lambda s: s.recall_20),
        pearson=mean(lambda s: s.pearson),
        spearman=mean(lambda s: s.spearman),
        pinball=mean(lambda s: s.pinball),
        coverage_80=mean(lambda s: s.coverage_80),
        coverage_90=float(np.mean(outer)) if outer else None,
    )


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


def _mean(prediction: Prediction) -> float:
    """Remaining tokens on average; where that is not told, the median stands for it."""
    told = prediction.expected_tokens
    return prediction.remaining_tokens if told is None else told


def _pinball(difference: Floats, level: float) -> float:
    return float(np.mean(np.maximum(level * difference, (level - 1.0) * difference)))


def _outer_coverage(said: Sequence[Said]) -> float | None:
    inside: list[bool] = []
    for one in said:
        p = one.prediction
        if p is not None and p.least_tokens is not None and p.most_tokens is not None:
            inside.append(p.least_tokens - 0.5 <= one.remaining_tokens <= p.most_tokens + 0.5)
    return float(np.mean(inside)) if inside else None
