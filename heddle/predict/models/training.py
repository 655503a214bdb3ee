"""Models trained on recorded trajectories, and what they would have said of each without having seen it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from heddle.predict.buckets import Floats
from heddle.predict.evaluation.recorded import RecordedTrajectory
from heddle.predict.evaluation.stream import Estimates
from heddle.predict.models.base import Example, LengthModel, Lesson
from heddle.types import Prediction, TrajectoryId

FOLDS = 5


def lesson_of(trajectories: Sequence[RecordedTrajectory]) -> Lesson:
    """Every point of every trajectory."""
    remaining = [t.total_tokens - p.generated_tokens for t in trajectories for p in t.points]
    weights = [len(t.points) ** -0.5 for t in trajectories for _ in t.points]
    examples = [example for t in trajectories for example in examples_of(t)]
    return Lesson(examples, np.log1p(remaining), np.array(weights))


def examples_of(trajectory: RecordedTrajectory) -> list[Example]:
    """One for each of its points."""
    prompt_tokens = trajectory.points[0].context_tokens
    return [
        Example(
            p.steps_done,
            p.generated_tokens,
            p.context_tokens,
            prompt_tokens,
            p.last_step,
            p.tool_seconds,
            p.text or "",
        )
        for p in trajectory.points
    ]


def held_out_estimates(
    make: Callable[[], LengthModel], trajectories: Sequence[RecordedTrajectory], folds: int = FOLDS
) -> Estimates:
    """What a model says of each trajectory, trained on those of other prompts: ``folds`` trainings."""
    said: dict[tuple[TrajectoryId, int], list[Prediction]] = {}
    parts = [[t for t in trajectories if _fold(t.prompt_id, folds) == fold] for fold in range(folds)]
    for fold, part in enumerate(parts):
        others = [t for index, other in enumerate(parts) if index != fold for t in other]
        if part and others:
            model = make()
            model.fit(lesson_of(others))
            said.update({key: list(value) for key, value in estimates(model, part).items()})
    return said


def estimates(model: LengthModel, trajectories: Sequence[RecordedTrajectory]) -> Estimates:
    """What a trained model says at every point of these trajectories."""
    keys = [(t.trajectory_id, p.steps_done) for t in trajectories for p in t.points]
    examples = [example for t in trajectories for example in examples_of(t)]
    if not examples:
        return {}
    quantiles = model.predict(examples)
    return {key: (as_prediction(row, key[1], model.name),) for key, row in zip(keys, quantiles, strict=True)}


def as_prediction(log_quantiles: Floats, steps_done: int, model: str) -> Prediction:
    """From one row of ``LengthModel.predict``."""
    low, median, high = np.expm1(log_quantiles).tolist()
    return Prediction(median, low, high, steps_done, model)


def merged(parts: Sequence[Estimates]) -> Estimates:
    """What several models say, at each point in their order."""
    said: dict[tuple[TrajectoryId, int], list[Prediction]] = {}
    for part in parts:
        for key, predictions in part.items():
            said.setdefault(key, []).extend(predictions)
    return said


def _fold(prompt_id: str, folds: int) -> int:
    """The same prompt is always in the same fold."""
    return int.from_bytes(hashlib.sha256(prompt_id.encode()).digest()[:4], "big") % folds


def learned_on(
    models: Mapping[str, LengthModel], trajectories: Sequence[RecordedTrajectory]
) -> Mapping[str, LengthModel]:
    """Train each on all of them."""
    lesson = lesson_of(trajectories)
    for model in models.values():
        model.fit(lesson)
    return models
