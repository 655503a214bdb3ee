"""Engine times fitted to logs: of engines whose times are known, they are found again."""

from __future__ import annotations

import random

import pytest
from sim_builders import PREFILL_PER_S, STEP_S, make_hardware, make_trajectory, make_workload

from heddle.control.build import PlaneSettings
from heddle.errors import ConfigError
from heddle.simulate.fit import capacities, fit
from heddle.simulate.hardware import EngineRules, Hardware, PrefillMode
from heddle.simulate.options import SimulationOptions
from heddle.simulate.readers.recorded import RecordedRun, parse_recorded
from heddle.simulate.simulator import simulate
from heddle.simulate.workload import Workload

SETTINGS = PlaneSettings(pool="1+1", slots=4, preemption=False)


def some_workload(count: int = 40) -> Workload:
    """Prompts and outputs of many sizes, each prompt its own."""
    rng = random.Random(3)
    return make_workload(
        *(
            make_trajectory(
                f"t{index}",
                [rng.randint(5, 300) for _ in range(rng.randint(1, 4))],
                prompt=rng.randint(10, 800),
                observed=rng.randint(0, 200),
                tool_s=rng.uniform(0.1, 2.0),
            )
            for index in range(count)
        )
    )


def recorded(workload: Workload, hardware: Hardware, settings: PlaneSettings = SETTINGS) -> RecordedRun:
    """The log that a simulated run writes, read back."""
    lines: list[bytes] = []
    options = SimulationOptions(log=lines.append)
    simulate(workload, settings, hardware, seed=0, configuration="log", options=options)
    return parse_recorded(b"\n".join([*lines, b""]), name="log")


@pytest.mark.parametrize("mode", PrefillMode)
def test_known_times_are_found_again(mode: PrefillMode) -> None:
    """A step alone, what each member adds, and prompts; contexts are short, so that their share is small."""
    (fitted,) = fit(recorded(some_workload(), make_hardware(gpus=2, mode=mode)))
    assert 1 == fitted.tp_degree
    assert pytest.approx(STEP_S, rel=0.2) == fitted.step_s
    assert pytest.approx(0.1 * STEP_S, rel=0.5) == fitted.per_member_s
    assert pytest.approx(1 / PREFILL_PER_S, rel=0.25) == fitted.per_prompt_token_s
    assert fitted.error < 0.1


@pytest.mark.parametrize("mode", PrefillMode)
def test_fitted_engines_take_as_long_as_the_recorded_ones(mode: PrefillMode) -> None:
    """The same batch, simulated by the fit: within four percent."""
    run = recorded(some_workload(), make_hardware(gpus=2, mode=mode))
    told = capacities(run)
    fitted = fit(run)
    hardware = Hardware(
        gpus=2,
        engines=tuple(degree.times(told[degree.tp_degree]) for degree in fitted),
        rules=EngineRules(prefill=mode, prefill_request_s=fitted[0].request_s),
    )
    again = simulate(run.workload, run.settings, hardware, seed=0, configuration="again")
    assert pytest.approx(run.makespan_s, rel=0.04) == again.makespan_s


def test_every_degree_is_fitted_by_its_own_workers() -> None:
    """Degree 2 is twice as fast here."""
    settings = PlaneSettings(pool="2+1", slots=4, preemption=False)
    run = recorded(some_workload(60), make_hardware(gpus=3, degrees=(1, 2)), settings)
    one, two = fit(run)
    assert (1, 2) == (one.tp_degree, two.tp_degree)
    assert pytest.approx(0.5, rel=0.2) == two.step_s / one.step_s


def test_too_little_is_not_fitted() -> None:
    """It asks for a profile instead."""
    with pytest.raises(ConfigError, match="too few to fit engine times to; give a profile"):
        fit(recorded(some_workload(3), make_hardware(gpus=2)))
