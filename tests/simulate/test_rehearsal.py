"""The rehearsal finds what is best for batches like the recorded one, and drops what cannot be."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim_builders import make_hardware, make_trajectory, make_workload

from heddle.control.build import PlaneSettings
from heddle.planning.profile import Profile
from heddle.presets import find_preset
from heddle.rehearsal.candidates import CONFIGURED, Candidate, candidate_pools, candidates_of
from heddle.rehearsal.race import Rehearsal, rehearse
from heddle.simulate.compare import Experiment
from heddle.simulate.hardware import Hardware
from heddle.simulate.sampling import Draw
from heddle.simulate.simulator import makespan_within, simulate
from heddle.simulate.workload import Workload

DEGREES = (1, 2, 4)


def hardware(kv_tokens: int | None = None) -> Hardware:
    """Four units; a step takes half as long on twice the degree."""
    return make_hardware(gpus=4, degrees=DEGREES, kv_tokens=kv_tokens)


def base(slots: int = 8) -> PlaneSettings:
    """The preset ``heddle`` with exact lengths."""
    profile = Profile("", "", 0.0, tuple(engine.profiles[0] for engine in hardware().engines))
    plain = PlaneSettings(predictor="oracle", profile=profile, slots_per_gpu=slots)
    return find_preset("heddle").over(plain)


def batch(*lengths: int, tool_s: float = 0.5) -> Workload:
    """Trajectories of two steps."""
    return make_workload(
        *(make_trajectory(f"t{i}", [length, length], tool_s=tool_s) for i, length in enumerate(lengths))
    )


def rehearsal(workload: Workload, settings: PlaneSettings, draws: int = 3) -> Rehearsal:
    return Rehearsal(Experiment(workload, hardware(), (), Draw(12, 2)), settings, draws=draws)


@given(st.lists(st.integers(1, 400), min_size=2, max_size=8), st.integers(1, 8))
@settings(max_examples=6, deadline=None)
def test_the_fastest_of_a_draw_is_never_dropped_in_it(lengths: list[int], slots: int) -> None:
    """Its makespan is what playing everybody to the end finds, and all that are recorded are true ones."""
    asked = rehearsal(batch(*lengths), base(slots), draws=1)

    outcome = rehearse(asked)

    played = [played_to_the_end(asked, entrant.candidate) for entrant in outcome.entrants]
    recorded = [min(entrant.makespans, default=None) for entrant in outcome.entrants]
    assert min(played) == min(seconds for seconds in recorded if seconds is not None)
    assert all(own in (None, true) for own, true in zip(recorded, played, strict=True))
    assert rehearse(asked) == outcome


def played_to_the_end(asked: Rehearsal, candidate: Candidate) -> float:
    """Seconds in the first draw."""
    experiment, seed = asked.experiment, asked.seed
    settings = candidate.over(asked.settings)
    workload = experiment.workload_of(seed)
    return simulate(workload, settings, experiment.hardware, seed=seed, configuration="").makespan_s


def test_one_long_trajectory_gets_the_largest_worker() -> None:
    """A single straggler decides, and a worker of four units is the fastest for it."""
    outcome = rehearse(rehearsal(batch(2000), base()))

    assert outcome.chosen.candidate.pool == (4,)
    assert (4,) != outcome.entrants[-1].candidate.pool
    assert outcome.entrants[-1].dropped


def test_ways_that_did_the_same_are_played_once() -> None:
    """Without a lack of memory a guard has nothing to do: the configured way goes on for the guarded ones."""
    outcome = rehearse(rehearsal(batch(300, 200, 100), base()))

    ways = {
        e.candidate.way: e.same_as
        for e in outcome.entrants
        if e.candidate.pool == outcome.chosen.candidate.pool
    }
    same = ways[f"{CONFIGURED}, no guard"]
    assert same is not None
    assert same.way == CONFIGURED


def test_who_is_ahead_by_less_than_the_margin_is_not_chosen() -> None:
    """Longest first is faster here; with a margin that it cannot reach, the best simple candidate stays."""
    asked = rehearsal(batch(900, 500, 100, 50, 20, 20), base(slots=1))

    bold, careful = rehearse(asked), rehearse(replace(asked, margin=10.0))

    assert not bold.chosen.candidate.simple
    assert bold.gain > 1.0 + asked.margin
    assert careful.chosen is careful.simple
    assert careful.chosen.candidate.simple
    assert careful.gain == 1.0


def test_who_loses_with_exact_lengths_is_not_chosen() -> None:
    """Memory is short: in the first batch nothing is trusted, in a later one the longest first is slower."""
    lengths = ([20] * 2, [10] * 2, [80] * 2, [40], [40], [80] * 2, [20] * 2, [40] * 2)
    tools = (2.0, 2.0, 0.1, 2.0, 0.5, 0.5, 0.5, 0.1)
    workload = make_workload(
        *(make_trajectory(f"t{i}", own, tool_s=tools[i]) for i, own in enumerate(lengths))
    )
    experiment = Experiment(workload, hardware(kv_tokens=300), ())
    learning = replace(base(slots=4), predictor="progressive")
    asked = Rehearsal(experiment, learning, draws=1)

    outcome = rehearse(asked, pools=[(4,)])
    daring = rehearse(replace(asked, margin=0.5), pools=[(4,)])

    trusting = replace(
        daring.chosen.candidate, choices={**daring.chosen.candidate.choices, "predictor": "oracle"}
    )
    known = played_to_the_end(asked, trusting)
    assert daring.chosen.candidate.way == CONFIGURED
    assert outcome.chosen is outcome.simple
    assert outcome.chosen.candidate.way == "sticky, guarded"
    assert outcome.chosen.mean_s == daring.chosen.mean_s < 0.98 * known


def test_who_gains_with_exact_lengths_is_chosen_where_it_is_as_good_without() -> None:
    """Cold it keeps a prompt's samples together, which costs half a percent; later it has more to win."""
    workload = batch(60, 60, 20, 200)
    experiment = Experiment(workload, hardware(), (), Draw(4, 4))
    learning = replace(base(slots=2), predictor="progressive")

    outcome = rehearse(Rehearsal(experiment, learning, draws=2, seed=303), pools=[(2, 2)])
    known = rehearse(Rehearsal(experiment, base(slots=2), draws=2, seed=303), pools=[(2, 2)])

    assert outcome.chosen.candidate.way == CONFIGURED
    assert 0.99 < outcome.gain < 1.0
    assert known.chosen.candidate.way == CONFIGURED
    assert known.gain > 1.02


def test_the_pools_of_a_budget_are_filled() -> None:
    """What no worker of a degree fits on becomes smaller workers; the planners' pools come first."""
    pools = candidate_pools(base(), 7, DEGREES, [100, 10])

    assert {(4, 2, 1), (2, 2, 2, 1), (1,) * 7} <= set(pools)
    assert all(sum(pool) == 7 for pool in pools)
    assert len(set(pools)) == len(pools)


def test_a_candidate_says_what_it_changes() -> None:
    """Its pool is spelled out, and its order is that of the preset that it falls back on."""
    found = {c.name: c for c in candidates_of(base(), [(2, 1, 1)])}

    assert list(found) == [
        f"1 x tp2 + 2 x tp1, {way}"
        for way in (
            "sticky, guarded",
            "sticky, groups together, guarded",
            "configured",
            "configured, no guard",
            "sticky",
        )
    ]
    assert found["1 x tp2 + 2 x tp1, sticky, groups together, guarded"].choices["placer"] == "sticky_group"
    assert not [c for c in candidates_of(base(), [(4,)]) if "together" in c.way], "one worker has them all"
    sticky = found["1 x tp2 + 2 x tp1, sticky"].over(base())
    assert (sticky.pool, sticky.allocator, sticky.scheduler, sticky.kv_guard) == (
        "2+1+1",
        "fixed",
        "fcfs",
        False,
    )


def test_the_preset_to_fall_back_on_is_not_tried_twice() -> None:
    """Where it is what is configured, its ways count once."""
    sticky = find_preset("sticky").over(base())

    assert [c.way for c in candidates_of(sticky, [(4,)])] == [CONFIGURED]


@pytest.mark.parametrize("share", [0.5, 0.99, 1.0, 2.0])
def test_a_simulation_is_given_up_after_the_time_it_is_allowed(share: float) -> None:
    """And otherwise finds what an unlimited one finds."""
    workload = batch(500, 300, 100)
    whole = simulate(workload, base(), hardware(), seed=0, configuration="").makespan_s

    found = makespan_within(workload, base(), hardware(), seed=0, most_s=share * whole)

    assert found == (whole if share >= 1 else None)
