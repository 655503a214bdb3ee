"""Predictors learn lengths from what has finished."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from heddle.control.state import TrajectoryState
from heddle.predict.mean_by_step import WINDOW, MeanByStep
from heddle.types import BatchId, GroupId, Prediction, TrajectoryId


def make_trajectory(name: str, *, steps: int = 0, tokens: int = 0) -> TrajectoryState:
    return TrajectoryState(
        TrajectoryId(name), BatchId("b"), GroupId("g"), 0.0, 100, 10, tokens, steps, 0.0, 0.0
    )


def one(predictor: MeanByStep, trajectory: TrajectoryState) -> Prediction | None:
    """Its prediction of one trajectory."""
    return predictor.predict([trajectory])[0]


def live(predictor: MeanByStep, name: str, outputs: Sequence[int], *, finish: bool = True) -> None:
    """Let a trajectory generate ``outputs`` tokens step by step."""
    trajectory = make_trajectory(name)
    for output in outputs:
        trajectory.steps_done += 1
        trajectory.generated_tokens += output
        predictor.observe_step(trajectory)
    if finish:
        predictor.observe_finished(trajectory)


def test_nothing_is_predicted_while_nothing_is_known() -> None:
    """Neither before the first ending nor for a step that nobody has reached."""
    predictor = MeanByStep()
    assert one(predictor, make_trajectory("a")) is None
    live(predictor, "a", [10, 20])

    assert one(predictor, make_trajectory("b", steps=3)) is None


def test_the_mean_and_the_quantiles_of_what_remained_after_as_many_steps() -> None:
    """Eleven trajectories: what remained after step 1 was 0, 10, ... 100 tokens."""
    predictor = MeanByStep()
    for index in range(11):
        live(predictor, f"t{index}", [5, 10 * index])

    assert one(predictor, make_trajectory("x", steps=1, tokens=5)) == Prediction(
        50.0, 10.0, 90.0, 1, "mean_by_step"
    )
    assert one(predictor, make_trajectory("x")) == Prediction(55.0, 15.0, 95.0, 0, "mean_by_step")
    assert one(predictor, make_trajectory("x", steps=2)) == Prediction(0.0, 0.0, 0.0, 2, "mean_by_step")


def test_the_interval_contains_the_mean_of_a_long_tail() -> None:
    """One giant lifts the mean above the 0.9 quantile."""
    predictor = MeanByStep()
    for index in range(30):
        live(predictor, f"t{index}", [1])
    live(predictor, "giant", [10_000])

    prediction = one(predictor, make_trajectory("x"))

    assert prediction is not None
    assert prediction.low_tokens <= prediction.remaining_tokens <= prediction.high_tokens
    assert prediction.remaining_tokens == pytest.approx(10_030 / 31)


def test_a_recovered_trajectory_teaches_only_what_was_seen_of_it() -> None:
    """The steps before the recovery are unknown, so nothing is learned about them."""
    predictor = MeanByStep()
    trajectory = make_trajectory("a", steps=3, tokens=50)
    predictor.observe_step(trajectory)
    trajectory.generated_tokens = 60
    trajectory.steps_done = 4
    predictor.observe_step(trajectory)
    predictor.observe_finished(trajectory)

    assert one(predictor, make_trajectory("x")) is None
    known = one(predictor, make_trajectory("x", steps=3))
    assert known is not None
    assert known.remaining_tokens == 10.0


def test_only_recent_endings_count() -> None:
    """After a whole window of new endings the old ones are gone."""
    predictor = MeanByStep()
    for index in range(100):
        live(predictor, f"old{index}", [1000])
    for index in range(WINDOW):
        live(predictor, f"new{index}", [10])

    assert one(predictor, make_trajectory("x")) == Prediction(10.0, 10.0, 10.0, 0, "mean_by_step")


def test_what_is_forgotten_teaches_nothing() -> None:
    """A cancelled trajectory leaves no path, and its later ending is no ending."""
    predictor = MeanByStep()
    live(predictor, "a", [10, 20], finish=False)
    predictor.forget(TrajectoryId("a"))
    predictor.observe_finished(make_trajectory("a", steps=2, tokens=30))

    assert one(predictor, make_trajectory("x", steps=1)) is None
