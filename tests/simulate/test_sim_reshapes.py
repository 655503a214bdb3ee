"""Reshapes in simulated time: no GPU is used twice, replay repeats them, and short batches are left alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim_builders import make_hardware, make_trajectory, make_workload

from heddle.control.build import PlaneSettings
from heddle.control.log import decode_entry, decode_header
from heddle.control.replay import replay
from heddle.planning.profile import Profile
from heddle.simulate.options import SimulationOptions, WorkerCrash
from heddle.simulate.result import SimulationResult
from heddle.simulate.simulator import simulate
from heddle.simulate.workload import Workload
from heddle.types import WorkerId

GPUS = 8
DEGREES = (1, 2, 4)
HARDWARE = make_hardware(gpus=GPUS, degrees=DEGREES)
SETTINGS = PlaneSettings(
    predictor="oracle",
    pool="1*",
    reshaper="tail",
    profile=Profile("gpu", "model", 0.0, tuple(engine.profiles[0] for engine in HARDWARE.engines)),
    transfer_tokens_per_s=HARDWARE.link.tokens_per_s,
)


PLAIN = SimulationOptions()


def play(
    workload: Workload, start_s: float, options: SimulationOptions = PLAIN, **changes: object
) -> SimulationResult:
    plane = replace(SETTINGS, worker_start_s=start_s, **changes)  # type: ignore[arg-type]  # by their names
    hardware = replace(HARDWARE, start_s=start_s)
    options = replace(options, check_every=1)
    result = simulate(workload, plane, hardware, seed=0, configuration="test", options=options)
    assert most_gpus(result) <= GPUS
    return result


def most_gpus(result: SimulationResult) -> int:
    """Held at once, at most."""
    changes: list[tuple[float, int]] = []
    for use in result.workers:
        if use.began_at is not None:
            changes.append((use.began_at, use.tp_degree))
            changes += [] if use.ended_at is None else [(use.ended_at, -use.tp_degree)]
    held = most = 0
    for _, change in sorted(changes):  # at one instant those that are given back come first
        held += change
        most = max(most, held)
    return most


def tailed(longest: int = 10_000) -> Workload:
    """Seven short trajectories and a long one of twenty steps."""
    short = [make_trajectory(f"t{i}", [50, 50]) for i in range(7)]
    return make_workload(make_trajectory("long", [longest // 20] * 20), *short)


def test_a_long_straggler_gets_a_larger_worker() -> None:
    """Alone it takes 0.01 s a token: 100 s and more, of which most go four times as fast."""
    fixed, elastic = play(tailed(), 5.0, reshaper="none"), play(tailed(), 5.0)
    assert [use.tp_degree for use in elastic.workers if use.began_at] == [4]
    assert elastic.makespan_s < 0.6 * fixed.makespan_s
    assert sum(outcome.generated_tokens for outcome in elastic.outcomes) == tailed().total_tokens


@pytest.mark.parametrize("start_s", [60.0, 120.0])
def test_a_start_that_takes_longer_than_what_is_left_is_not_made(start_s: float) -> None:
    fixed, elastic = play(tailed(3000), start_s, reshaper="none"), play(tailed(3000), start_s)
    assert elastic.makespan_s == fixed.makespan_s
    assert len(elastic.workers) == GPUS


def test_a_replay_reshapes_alike() -> None:
    lines: list[bytes] = []
    play(tailed(), 5.0, SimulationOptions(log=lines.append))
    report = replay(decode_header(lines[0]), map(decode_entry, lines[1:]))
    assert report.equal
    assert report.events == len(lines) - 1


def test_the_second_batch_finds_the_pool_that_was_asked_for() -> None:
    """It comes while the straggler runs on its larger worker: that is given up, and eight serve again."""
    second = [make_trajectory(f"s{i}", [500] * 4, arrival_s=40.0) for i in range(16)]
    result = play(make_workload(*tailed().trajectories, *second), 5.0)
    started = [use.tp_degree for use in result.workers if use.began_at]
    assert started[0] == 4
    assert started[1:5] == [1] * 4
    assert {outcome.stop_reason.value for outcome in result.outcomes} == {"completed"}


def test_a_new_worker_that_dies_is_waited_for() -> None:
    crash = WorkerCrash(WorkerId("w8"), at_s=30.0, restart_s=10.0)
    result = play(tailed(), 5.0, SimulationOptions(faults=(crash,)))
    assert {outcome.stop_reason.value for outcome in result.outcomes} == {"completed"}


def test_a_new_worker_that_is_lost_brings_the_former_back() -> None:
    crash = WorkerCrash(WorkerId("w8"), at_s=30.0, restart_s=None)
    result = play(tailed(), 5.0, SimulationOptions(faults=(crash,)))
    assert [use.tp_degree for use in result.workers if use.began_at] == [4, 1, 1, 1, 1]
    assert {outcome.stop_reason.value for outcome in result.outcomes} == {"completed"}


steps = st.lists(st.integers(1, 1500), min_size=1, max_size=6)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(steps, st.sampled_from([0.0, 0.0, 15.0])), min_size=1, max_size=14),
    st.sampled_from([0.0, 1.0, 5.0]),
    st.sampled_from(["1*", "2*", "1+1+2+4"]),
    st.sampled_from(["oracle", "mean_by_step", "progressive"]),
)
def test_nothing_is_lost_and_no_gpu_is_used_twice(
    work: list[tuple[list[int], float]], start_s: float, pool: str, predictor: str
) -> None:
    """Whatever comes whenever; the invariants are checked after every event."""
    trajectories = [
        make_trajectory(f"t{i}", tokens, tool_s=0.3, arrival_s=arrival_s)
        for i, (tokens, arrival_s) in enumerate(work)
    ]
    workload = make_workload(*trajectories)
    result = play(workload, start_s or 0.01, pool=pool, predictor=predictor)
    assert sum(outcome.generated_tokens for outcome in result.outcomes) == workload.total_tokens
