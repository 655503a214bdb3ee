"""Scores: the longest by the mean, the same trajectories from step to step, folds by prompt."""

from __future__ import annotations

from lives import population, stream

from heddle.predict import make_predictor
from heddle.predict.evaluation.folds import folds
from heddle.predict.evaluation.scores import mean_score, of_the_same, recall_interval, score
from heddle.predict.evaluation.stream import Said
from heddle.types import Prediction, TrajectoryId


def said(index: int, remaining: int, median: float, mean: float, *, steps_done: int = 0) -> Said:
    """What was said of one trajectory, each of a prompt of its own."""
    prediction = Prediction(median, median, median, steps_done, "test", expected_tokens=mean)
    return Said(TrajectoryId(f"t{index}"), f"p{index}", prediction, steps_done, 100 * steps_done, remaining)


def test_the_longest_are_told_by_the_mean() -> None:
    """The median has them in the wrong order."""
    scored = score([said(i, 10 + i, median=100.0 - i, mean=float(i)) for i in range(20)])
    assert scored is not None
    assert (scored.recall_10, scored.recall_10_by_median, scored.recall_10_by_high) == (1.0, 0.0, 0.0)


def test_an_interval_of_a_sure_score_is_that_score() -> None:
    """Whichever prompts are drawn, the order is right."""
    interval = recall_interval([said(i, 10 + i, 1.0, float(i)) for i in range(20)])
    assert interval is not None
    assert (interval.low, interval.high) == (1.0, 1.0)


def test_the_same_trajectories_are_compared_from_step_to_step() -> None:
    """Those of three steps, more than half of all; the others are left out at every step."""
    short = [said(i, 10 + i, 1.0, 1.0) for i in range(9)]
    long = [
        said(i, 300 + i - 100 * s, 300.0 + i, 300.0, steps_done=s) for i in range(9, 20) for s in (0, 1, 2)
    ]
    assert {steps: same.trajectories for steps, same in of_the_same(short + long).items()} == {
        0: 11,
        1: 11,
        2: 11,
    }


def test_each_prompt_is_held_out_once() -> None:
    """With all of its samples, and in other folds for another seed."""
    lives = population(1, 120)
    splits = folds(lives, seed=0)
    held_out = [[t.trajectory_id for t in split if t.held_out] for split in splits]
    assert sorted(name for part in held_out for name in part) == sorted(t.trajectory_id for t in lives)
    for split in splits:
        tested = {t.prompt_id for t in split if t.held_out}
        assert tested.isdisjoint(t.prompt_id for t in split if not t.held_out)
    assert held_out != [[t.trajectory_id for t in split if t.held_out] for split in folds(lives, seed=1)]


def test_the_mean_of_equal_scores_is_that_score() -> None:
    """Every number of it."""
    scored = score(list(stream(make_predictor("progressive"), population(1, 96))))
    assert scored is not None
    assert mean_score([scored, scored]) == scored
