"""What a predictor has learned from earlier batches: there from the first event on, and in the log."""

from __future__ import annotations

import json

import pytest
from sim_builders import make_hardware, make_trajectory, make_workload

from heddle.control.build import PlaneSettings
from heddle.errors import ConfigError
from heddle.simulate.compare import Configuration, Experiment, run_one, teach
from heddle.simulate.options import SimulationOptions
from heddle.simulate.sampling import Draw
from heddle.simulate.simulator import simulate
from heddle.types import JsonWritable

LEARNING = PlaneSettings(predictor="progressive", slots=2)


def logged(*lessons: int) -> list[JsonWritable]:
    """The events of one run after these lessons, as they are in its log."""
    lines: list[bytes] = []
    workload = make_workload(*(make_trajectory(f"t{i}", [20 + 10 * i, 30]) for i in range(6)))
    options = SimulationOptions(log=lines.append)
    experiment = Experiment(workload, make_hardware(), (), Draw(4, 2), options=options)
    taught = Configuration("c", LEARNING, teach(experiment, LEARNING, lessons))
    run_one(experiment, experiment.workload_of(0), taught, 0)
    return [json.loads(line) for line in lines[1:]]


def first_grant(entries: list[JsonWritable]) -> JsonWritable:
    """The first entry whose commands let somebody generate."""
    return next(entry for entry in entries if '"Generate"' in json.dumps(entry))


def test_a_predictor_that_had_lessons_expects_something_of_the_first_batch() -> None:
    """Its state is the first event of the log, and what it learned shows in the first grant."""
    cold, taught = logged(), logged(7)

    assert "PredictorRestored" not in json.dumps(cold)
    assert "PredictorRestored" in json.dumps(taught[0])
    assert "remaining_tokens" not in json.dumps(first_grant(cold))
    assert "remaining_tokens" in json.dumps(first_grant(taught))


def test_the_second_lesson_goes_on_from_the_first() -> None:
    """Equal lessons give equal states; another one more gives another."""
    assert logged(7)[0] == logged(7)[0]
    assert logged(7, 8)[0] != logged(7)[0]


def test_what_no_predictor_wrote_is_refused() -> None:
    """Before anything is played."""
    options = SimulationOptions(learned='{"w": 3}')
    with pytest.raises(ConfigError, match="none of the predictor 'progressive'"):
        simulate(
            make_workload(make_trajectory("t", [20])),
            LEARNING,
            make_hardware(),
            seed=0,
            configuration="c",
            options=options,
        )
