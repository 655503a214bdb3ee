"""Oracles: exact, or wrong by a stated and repeatable error."""

from __future__ import annotations

import math
import statistics

import pytest

from heddle.control.ports import LengthPredictor
from heddle.control.state import TrajectoryState
from heddle.predict import PredictorOptions, make_predictor
from heddle.types import BatchId, GroupId, Prediction, TrajectoryId


def make_trajectory(name: str, *, total: int | None, generated: int = 0, steps: int = 0) -> TrajectoryState:
    """A replay of ``total`` tokens."""
    return TrajectoryState(
        TrajectoryId(name),
        BatchId("b"),
        GroupId("g"),
        submitted_at=0.0,
        max_tokens=10_000,
        context_tokens=10,
        generated_tokens=generated,
        steps_done=steps,
        queued_at=0.0,
        phase_since=0.0,
        known_total_tokens=total,
    )


def one(predictor: LengthPredictor, trajectory: TrajectoryState) -> Prediction | None:
    """Its prediction of one trajectory."""
    return predictor.predict([trajectory])[0]


def test_the_oracle_knows_the_rest() -> None:
    """Exactly, after any number of steps, and never less than nothing."""
    oracle = make_predictor("oracle")
    prediction = one(oracle, make_trajectory("t", total=500, generated=120, steps=3))
    assert prediction is not None
    assert (prediction.low_tokens, prediction.remaining_tokens, prediction.high_tokens) == (380, 380, 380)
    assert (prediction.made_after_step, prediction.model) == (3, "oracle")
    beyond = one(oracle, make_trajectory("t", total=500, generated=501))
    assert beyond is not None
    assert beyond.remaining_tokens == 0.0


@pytest.mark.parametrize("name", ["oracle", "noisy_oracle"])
def test_an_oracle_knows_nothing_of_what_is_no_replay(name: str) -> None:
    """It says so instead of guessing."""
    assert one(make_predictor(name), make_trajectory("t", total=None)) is None


def totals(seed: int, error: float) -> list[float]:
    """Predicted totals of many replays of 1000 tokens."""
    oracle = make_predictor("noisy_oracle", PredictorOptions(error=error, seed=seed))
    found = [one(oracle, make_trajectory(f"t{i}", total=1000)) for i in range(4000)]
    return [prediction.remaining_tokens for prediction in found if prediction is not None]


def test_the_noise_is_as_large_as_stated() -> None:
    """The logarithm of the factor has median 0 and the stated deviation."""
    logs = [math.log(total / 1000.0) for total in totals(seed=1, error=0.5)]
    assert statistics.median(logs) == pytest.approx(0.0, abs=0.05)
    assert statistics.stdev(logs) == pytest.approx(0.5, abs=0.03)


def test_the_noise_follows_from_the_seed() -> None:
    """The same seed errs the same way, another seed in another; no error is the oracle."""
    assert totals(seed=1, error=0.5) == totals(seed=1, error=0.5)
    assert totals(seed=1, error=0.5) != totals(seed=2, error=0.5)
    assert set(totals(seed=1, error=0.0)) == {1000.0}


def test_a_trajectory_keeps_its_error_and_outlives_it() -> None:
    """The estimate of the total stays until it is passed; then the end is never at hand."""
    oracle = make_predictor("noisy_oracle", PredictorOptions(error=0.5, seed=3))
    first = one(oracle, make_trajectory("t", total=1000))
    later = one(oracle, make_trajectory("t", total=1000, generated=100, steps=1))
    assert first is not None
    assert later is not None
    assert later.remaining_tokens == pytest.approx(first.remaining_tokens - 100)
    passed = one(oracle, make_trajectory("t", total=1000, generated=50_000, steps=9))
    assert passed is not None
    assert passed.remaining_tokens == pytest.approx(25_000)
