"""Schedulers rank what waits: what all have in common, and what each is for."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.control.state import TrajectoryState
from heddle.errors import ConfigError
from heddle.scheduling import SCHEDULERS, make_scheduler
from heddle.types import BatchId, GroupId, Prediction, TrajectoryId, Trust

NAMES = tuple(SCHEDULERS)


def make_trajectory(
    name: str,
    *,
    arrival: int = 0,
    steps_done: int = 0,
    generated: int = 0,
    remaining: float | None = None,
    context: int = 10,
) -> TrajectoryState:
    """One that waits; ``remaining`` was predicted just now."""
    trajectory = TrajectoryState(
        TrajectoryId(name),
        BatchId("b"),
        GroupId("g"),
        submitted_at=0.0,
        max_tokens=10_000,
        context_tokens=context,
        generated_tokens=generated,
        steps_done=steps_done,
        queued_at=0.0,
        phase_since=0.0,
        arrival=arrival,
    )
    if remaining is not None:
        trajectory.prediction = Prediction(remaining, remaining, remaining, steps_done, "test")
        trajectory.predicted_at_tokens = generated
    return trajectory


def order(scheduler: str, *waiting: TrajectoryState) -> list[str]:
    """Names in the order in which a worker would serve them."""
    rank = make_scheduler(scheduler).priority
    return [str(t.trajectory_id) for t in sorted(waiting, key=lambda t: (-rank(t, 50.0), t.arrival))]


TRAJECTORIES = st.builds(
    make_trajectory,
    st.just("t"),
    arrival=st.integers(1, 1 << 40),
    steps_done=st.integers(0, 1000),
    generated=st.integers(0, 10_000_000),
    remaining=st.none() | st.floats(0, 1e9),
    context=st.integers(1, 1 << 20),
)


@pytest.mark.parametrize("name", NAMES)
def test_a_scheduler_is_known_by_its_name(name: str) -> None:
    """The name that makes it is the name that it says."""
    assert make_scheduler(name).name == name


@pytest.mark.parametrize("name", NAMES)
@given(trajectory=TRAJECTORIES, now=st.floats(0, 1e9))
def test_priorities_are_finite_and_the_same_at_any_time(
    name: str, trajectory: TrajectoryState, now: float
) -> None:
    """The log carries them, and a trajectory that waits keeps its rank."""
    scheduler = make_scheduler(name)
    priority = scheduler.priority(trajectory, now)
    assert math.isfinite(priority)
    assert priority == scheduler.priority(trajectory, now + 1000.0)


@pytest.mark.parametrize("name", NAMES)
@given(trajectory=TRAJECTORIES, context=st.integers(1, 1 << 20))
def test_the_size_of_the_context_does_not_matter(
    name: str, trajectory: TrajectoryState, context: int
) -> None:
    """So that no admission latency can follow the prompt's size."""
    scheduler = make_scheduler(name)
    before = scheduler.priority(trajectory, 0.0)
    trajectory.context_tokens = context
    assert scheduler.priority(trajectory, 0.0) == before


@pytest.mark.parametrize("name", [n for n in NAMES if n != "fcfs"])
def test_equals_go_by_arrival(name: str) -> None:
    """Two that differ in nothing have equal ranks, and neither may take the other's slot."""
    scheduler = make_scheduler(name)
    early, late = make_trajectory("early", arrival=1), make_trajectory("late", arrival=2)
    assert order(name, late, early) == ["early", "late"]
    assert scheduler.priority(early, 0.0) == scheduler.priority(late, 0.0)
    assert scheduler.margin is None or scheduler.margin >= 0.0


@pytest.mark.parametrize(
    ("name", "margin"),
    [
        ("fcfs", None),
        ("round_robin", None),
        ("autellix", 0.0),
        ("shortest_first", 7.0),
        ("progressive", 7.0),
    ],
)
def test_who_preempts_and_by_which_lead(name: str, margin: float | None) -> None:
    """Orders that know nothing of lengths interrupt nobody."""
    assert make_scheduler(name, margin_tokens=7.0).margin == margin


def test_fcfs_goes_by_entry_into_the_queue() -> None:
    """Whatever else is known."""
    late, early = make_trajectory("late", arrival=9, remaining=500.0), make_trajectory("early", arrival=2)
    assert order("fcfs", late, early) == ["early", "late"]


def test_round_robin_gives_everybody_a_step_before_anybody_the_next() -> None:
    """Arrival decides within a round only."""
    second = make_trajectory("second", arrival=1, steps_done=2)
    first = make_trajectory("first", arrival=8, steps_done=1)
    assert order("round_robin", second, first) == ["first", "second"]


def test_autellix_counts_service_in_levels_that_double() -> None:
    """Within a level it is first come, first served."""
    levels = [
        -make_scheduler("autellix").priority(make_trajectory("t", generated=tokens), 0.0)
        for tokens in (0, 63, 64, 127, 128, 255, 256, 6400)
    ]
    assert levels == [0, 0, 1, 1, 2, 2, 3, 7]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("progressive", ["long", "short"]), ("shortest_first", ["short", "long"])],
)
def test_those_by_length_go_by_what_remains(name: str, expected: list[str]) -> None:
    """What was generated since the prediction is taken off."""
    long = make_trajectory("long", arrival=2, remaining=100.0)
    short = make_trajectory("short", arrival=1, remaining=130.0)
    short.generated_tokens += 40
    assert order(name, short, long) == expected


def test_without_a_prediction_the_past_stands_for_the_future() -> None:
    """As much again as was generated: who has come far is expected to go far."""
    new, far = make_trajectory("new", arrival=1), make_trajectory("far", arrival=2, generated=300)
    known = make_trajectory("known", arrival=3, remaining=200.0)
    assert order("progressive", new, far, known) == ["far", "known", "new"]


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    """The error lists what there is."""
    with pytest.raises(ConfigError, match="fcfs, round_robin, autellix, shortest_first, progressive"):
        make_scheduler("lifo")


@pytest.mark.parametrize(
    ("correlation", "samples", "first", "rank"),
    [(0.9, 500, "long", 900.0), (0.75, 500, "long", 450.0), (0.5, 500, "short", 0.0), (0.9, 5, "short", 0.0)],
)
def test_earned_goes_by_arrival_without_trust_and_by_length_with_it(
    correlation: float, samples: int, first: str, rank: float
) -> None:
    """A predictor that proves right, half right, not at all, or on too few."""
    long = make_trajectory("long", arrival=2, remaining=900.0)
    short = make_trajectory("short", arrival=1, remaining=100.0)
    scheduler = make_scheduler("earned", trust=lambda: Trust(0.5, correlation, 0.8, samples))

    served = sorted((long, short), key=lambda t: (-scheduler.priority(t, 0.0), t.arrival))

    assert served[0].trajectory_id == first
    assert scheduler.priority(long, 0.0) == pytest.approx(rank)
    assert make_scheduler("earned").priority(long, 0.0) == 0.0
