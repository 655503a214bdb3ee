"""Predictors side by side on one recording: everything that an evaluation prints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from heddle.control.ports import LengthPredictor
from heddle.predict.evaluation.recorded import RecordedTrajectory, waves
from heddle.predict.evaluation.scores import (
    Interval,
    SameScore,
    Score,
    by_step,
    calibration,
    of_the_same,
    recall_interval,
    score,
)
from heddle.predict.evaluation.stream import Estimates, Said, play
from heddle.types import TrajectoryId, Trust

PROMPT_ONLY = "prompt_only"


@dataclass(frozen=True, slots=True)
class PredictorReport:
    """One predictor on the test split."""

    predictor: str
    overall: Score | None
    recall_10: Interval | None
    """Of the overall score."""
    by_step: Mapping[int, Score]
    """By number of finished steps."""
    same: Mapping[int, SameScore]
    """By number of finished steps, of the trajectories that reached all of them."""
    calibration: Mapping[float, float]
    """Share of true lengths at or below each quantile, by its level."""
    trust: Trust | None
    """As its own judgement stood at the end."""


@dataclass(frozen=True, slots=True)
class Playback:
    """How recordings are played."""

    prompts: int = 64
    """That begin together, with all their samples."""
    learning: bool = True
    """Whether the endings of the test split are learned from, as they would be live."""


def evaluate(
    make: Callable[[], LengthPredictor],
    trajectories: Sequence[RecordedTrajectory],
    estimates: Estimates,
    playback: Playback,
) -> tuple[Sequence[Said], LengthPredictor]:
    """What a predictor says on the test split after it has seen the training split."""
    predictor = make()
    train = [t for t in trajectories if not t.held_out]
    for number, batch in enumerate(waves(train, playback.prompts)):
        for _ in play(predictor, batch, estimates, name=f"train {number}"):
            pass
    said: list[Said] = []
    test = [t for t in trajectories if t.held_out]
    for number, batch in enumerate(waves(test, playback.prompts)):
        said += play(predictor, batch, estimates, name=f"test {number}", learning=playback.learning)
    return said, predictor


def report(name: str, said: Sequence[Said], trust: Trust | None) -> PredictorReport:
    """Everything that is told of one predictor."""
    return PredictorReport(
        name,
        score(said),
        recall_interval(said),
        by_step(said),
        of_the_same(said),
        calibration(said),
        trust,
    )


def prompt_only(said: Sequence[Said]) -> list[Said]:
    """What was said before the first step, less what was generated since: never looked at again."""
    first: dict[TrajectoryId, Said] = {}
    frozen = []
    for one in said:
        origin = first.setdefault(one.trajectory_id, one).prediction
        if origin is not None:
            left = max(0.0, origin.remaining_tokens - one.generated_tokens)
            low = max(0.0, origin.low_tokens - one.generated_tokens)
            high = max(0.0, origin.high_tokens - one.generated_tokens)
            told = origin.expected_tokens
            mean = None if told is None else max(0.0, told - one.generated_tokens)
            origin = replace(
                origin,
                remaining_tokens=left,
                low_tokens=low,
                high_tokens=high,
                least_tokens=None,
                most_tokens=None,
                expected_tokens=mean,
                model=PROMPT_ONLY,
            )
        frozen.append(replace(one, prediction=origin))
    return frozen
