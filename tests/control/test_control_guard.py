"""The memory guard: who loses its claim, who gets it back, and that size decides neither."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import replace

import pytest
from control_rig import Rig, generated, make_spec, preempted
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual_world import Recorded, VirtualWorld

from heddle.control.build import PlaneSettings
from heddle.control.dispatch import DispatchRules
from heddle.control.events import BatchSubmitted, LengthPredicted, PoolRequested, WorkerReady
from heddle.control.guard import GuardRules
from heddle.placement import PlacerOptions, make_placer
from heddle.planning.profile import DegreeProfile, Profile
from heddle.predict import make_predictor
from heddle.scheduling import SCHEDULERS, make_scheduler
from heddle.types import BatchId, GroupId, Prediction, StopReason, TrajectoryId, WorkerId


def make_rig(
    capacity: int | None, *, slots: int = 2, patience_s: float = 1000.0, enabled: bool = True
) -> Rig:
    """One worker; limits of 0.9 and 0.8 of the capacity."""
    rules = DispatchRules(guard=GuardRules(enabled, high_share=0.9, low_share=0.8, patience_s=patience_s))
    rig = Rig(slots=slots, rules=rules)
    rig.pool(1, kv_capacity_tokens=capacity)
    return rig


def submit(rig: Rig, **prompts: int) -> list[tuple[str, str]]:
    """A batch of trajectories by name and tokens of prompt; who starts."""
    specs = tuple(make_spec(name, prompt_tokens=tokens) for name, tokens in prompts.items())
    return generated(rig.send(BatchSubmitted(BatchId("batch"), specs)))


def to_tool(rig: Rig, name: str, output: int = 10) -> list[tuple[str, str]]:
    """Its step ends and its tool starts; who starts because of that."""
    return generated([*rig.step(name, output=output), *rig.tools_started(name)])


def held(rig: Rig) -> int:
    return rig.plane.state.workers[WorkerId("w0")].kv_tokens


def reason(rig: Rig, name: str) -> str:
    return rig.plane.explain(TrajectoryId(name), rig.now).reason


def lot(rig: Rig) -> tuple[TrajectoryId, ...]:
    return rig.plane.state.workers[WorkerId("w0")].lot.first(9)


def test_nobody_in_a_tool_loses_its_claim_to_let_another_have_a_turn() -> None:
    """Whoever does not fit waits in the lot, whoever holds memory goes on."""
    rig = make_rig(1000)
    submit(rig, a=300, b=300, c=300, d=100)
    assert to_tool(rig, "a") == []

    assert held(rig) == 310 + 300
    assert lot(rig) == ("c", "d")
    assert reason(rig, "c") == (
        "held back by the memory guard until its 300 tokens fit; 610 of 1000 tokens of w0 are held"
    )
    assert generated(rig.tools_finished("a", appended=5)) == [("a", "w0")]
    assert held(rig) == 315 + 300


def test_nobody_overtakes_the_first_of_the_lot_and_it_returns_below_the_lower_limit() -> None:
    """A smaller one would fit; it waits until the larger one has been let in."""
    rig = make_rig(1000)
    submit(rig, a=300, b=300, c=300, d=100)
    to_tool(rig, "a")
    assert lot(rig) == ("c", "d")

    assert generated(rig.finish("b")) == [("c", "w0"), ("d", "w0")]
    assert held(rig) == 310 + 300 + 100


def make_pair(placer: str) -> Rig:
    """Two equal workers that may hold 900 tokens each, and four trajectories of 600."""
    rules = DispatchRules(guard=GuardRules())
    profile = Profile("", "", 1000.0, (DegreeProfile.measured(1, [(1, 0.01), (8, 0.02)]),))
    rig = Rig(slots=2, rules=rules, placer=make_placer(placer, PlacerOptions(profile)))
    rig.pool(2, kv_capacity_tokens=1000)
    assert submit(rig, a=600, b=600, c=600, d=600) == [("a", "w0"), ("b", "w1")]
    assert rig.homes() == {"w0": 2, "w1": 2}
    return rig


@pytest.mark.parametrize("placer", ["drain", "exact"])
def test_who_waits_for_memory_goes_to_another_worker_that_has_some(placer: str) -> None:
    """The last one of a worker that has served its own: what was held back elsewhere starts there."""
    rig = make_pair(placer)
    assert generated(rig.finish("b")) == [("d", "w1")]

    assert generated(rig.finish("d")) == [("c", "w1")]
    assert (rig.trajectory("c").worker_id, lot(rig)) == ("w1", ())


def test_who_waits_for_memory_stays_where_it_is_bound_to() -> None:
    """A placer that pins is asked, and says so."""
    rig = make_pair("sticky_least_loaded")
    rig.finish("b")
    assert generated(rig.finish("d")) == []
    assert lot(rig) == ("c",)


def group(rig: Rig, *names: str, prompt: int) -> list[tuple[str, str]]:
    """A batch of one group with one prompt; who starts."""
    specs = tuple(replace(make_spec(name, prompt_tokens=prompt), group_id=GroupId("g")) for name in names)
    return generated(rig.send(BatchSubmitted(BatchId("batch"), specs)))


@pytest.mark.parametrize(
    ("shares", "started", "held_tokens"), [(True, ["a", "b", "c"], 400), (False, ["a", "b"], 800)]
)
def test_a_prompt_that_an_engine_holds_once_counts_once(
    shares: bool, started: list[str], held_tokens: int
) -> None:
    """However many members of its group are there; the last of them gives it up."""
    rig = Rig(slots=3)
    rig.send(PoolRequested(1))
    rig.send(WorkerReady(WorkerId("w0"), 3, 1000, shares_prompts=shares))

    assert [name for name, _ in group(rig, "a", "b", "c", prompt=400)] == started
    assert held(rig) == held_tokens

    rig.step("a", output=10)
    rig.step("b", output=20)
    assert held(rig) == 430 if shares else 830
    for name in "abc":
        rig.finish(name)
    assert held(rig) == 0


def test_a_tool_that_takes_too_long_costs_its_claim_where_another_wants_it() -> None:
    """And only there; it is held back when it comes."""
    rig = make_rig(1000, patience_s=20.0)
    submit(rig, a=300, b=300, c=300, d=100)
    to_tool(rig, "a")
    rig.now += 30.0
    assert not rig.trajectory("a").held_back

    assert to_tool(rig, "b") == [("c", "w0"), ("d", "w0")]

    assert rig.trajectory("a").held_back
    assert reason(rig, "a") == "step 0 runs python; the memory guard will hold it back after that"
    rig.tools_finished("a", appended=5)
    assert lot(rig) == ("a",)


def test_contexts_that_grow_push_the_least_urgent_out() -> None:
    """Of those in their tools; the others keep what they hold."""
    rig = make_rig(1000, slots=3)
    submit(rig, a=300, b=300, c=200)
    to_tool(rig, "a")
    to_tool(rig, "b")
    assert held(rig) == 310 + 310 + 200

    rig.step("c", output=120)

    assert [rig.trajectory(name).held_back for name in "abc"] == [False, True, False]
    assert held(rig) == 310 + 320


def test_nothing_is_guarded_where_the_capacity_is_unknown_or_the_guard_is_off() -> None:
    """Then engines have to cope by themselves."""
    for rig in (make_rig(None), make_rig(100, enabled=False)):
        submit(rig, a=300, b=300, c=300)
        assert to_tool(rig, "a") == [("c", "w0")]
        assert not rig.trajectory("a").held_back


def test_a_worker_where_nothing_runs_takes_whatever_is_next() -> None:
    """Too small a cache is slow; it must not be the end."""
    rig = make_rig(100, slots=2)
    assert submit(rig, a=300, b=300) == [("a", "w0")]
    assert lot(rig) == ("b",)

    assert to_tool(rig, "a") == [("b", "w0")]

    assert rig.trajectory("a").held_back
    rig.tools_finished("a")
    assert generated(rig.finish("b")) == [("a", "w0")]


@pytest.mark.parametrize(("capacity", "victims"), [(1000, ["short"]), (500, [])])
def test_a_contender_without_memory_preempts_nobody(capacity: int, victims: list[str]) -> None:
    """It could not start in the slot that it would get."""
    rig = Rig(slots=1, scheduler=make_scheduler("progressive"), predictor=make_predictor("oracle"))
    rig.pool(1, kv_capacity_tokens=capacity)
    specs = tuple(make_spec(name, prompt_tokens=300, known=200) for name in ("short", "other"))
    rig.send(BatchSubmitted(BatchId("batch"), specs))

    longer = LengthPredicted(TrajectoryId("other"), Prediction(900.0, 900.0, 900.0, 0, "outside"))

    assert preempted(rig.send(longer)) == victims


def test_a_new_estimate_moves_somebody_within_the_lot() -> None:
    """Ranks count there as they do in the line."""
    rig = Rig(slots=4, scheduler=make_scheduler("progressive"), predictor=make_predictor("oracle"))
    rig.pool(1, kv_capacity_tokens=500)
    specs = [
        make_spec(name, prompt_tokens=400, known=known) for name, known in (("a", 90), ("b", 80), ("c", 70))
    ]
    rig.send(BatchSubmitted(BatchId("batch"), tuple(specs)))
    assert lot(rig) == ("b", "c")

    rig.send(LengthPredicted(TrajectoryId("c"), Prediction(500.0, 400.0, 600.0, 0, "outside")))

    assert lot(rig) == ("c", "b")


def test_a_lost_worker_takes_its_claims_with_it() -> None:
    """Whoever was held back there waits elsewhere like anybody else."""
    rig = make_rig(1000)
    submit(rig, a=300, b=300, c=300, d=100)
    to_tool(rig, "a")
    assert rig.trajectory("c").held_back
    rig.lost("w0")
    assert not rig.trajectory("c").held_back
    assert held(rig) == 300
    assert TrajectoryId("c") in rig.plane.state.unplaced


def test_a_held_back_trajectory_can_be_cancelled() -> None:
    """It leaves the lot with the order to end."""
    rig = make_rig(1000)
    submit(rig, a=300, b=300, c=300)
    to_tool(rig, "a")
    assert lot(rig) == ("c",)
    rig.finish("c", StopReason.CANCELLED)
    assert lot(rig) == ()


WORKS = st.lists(
    st.builds(
        lambda steps, prompt: Recorded(
            tuple(tokens for tokens, _ in steps), tuple(tool for _, tool in steps), prompt
        ),
        st.lists(st.tuples(st.integers(1, 60), st.floats(0.0, 2.0)), min_size=1, max_size=5),
        st.integers(1, 200),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(
    work=WORKS,
    scheduler=st.sampled_from(tuple(SCHEDULERS)),
    capacity=st.sampled_from([None, 50, 300, 1000]),
    slots=st.integers(1, 4),
    ageing=st.sampled_from([0.0, 5.0]),
    bound=st.integers(0, 3),
)
def test_every_world_comes_to_its_end(
    work: Sequence[Recorded],
    scheduler: str,
    capacity: int | None,
    slots: int,
    ageing: float,
    bound: int,
) -> None:
    """Whatever is preempted and held back, everybody ends, with exactly its tokens."""
    chosen = PlaneSettings(
        scheduler=scheduler,
        predictor="oracle",
        pool="1+1",
        slots=slots,
        ageing_per_s=ageing,
        max_preemptions_per_step=bound,
    )
    world = VirtualWorld(chosen, work, kv_capacity_tokens=capacity)
    world.run()
    assert [life.sampled for life in world.lives.values()] == [r.total for r in work]
    assert all(count <= bound for life in world.lives.values() for count in life.preemptions.values())
    assert not world.plane.state.trajectories


@pytest.mark.parametrize("scheduler", ["fcfs", "round_robin", "autellix", "progressive"])
def test_waiting_does_not_follow_the_size_of_the_prompt(scheduler: str) -> None:
    """Under pressure: over many trajectories alike but for their prompts, the correlation is below 0.3."""
    rng = random.Random(11)
    work = [
        Recorded((20,) * 4, tuple(rng.uniform(0.2, 2.0) for _ in range(4)), rng.randrange(20, 400))
        for _ in range(120)
    ]
    chosen = PlaneSettings(scheduler=scheduler, predictor="oracle", pool="1+1", slots=4)
    world = VirtualWorld(chosen, work, kv_capacity_tokens=2000)
    world.run()
    waited = [life.waited_s for life in world.lives.values()]
    assert abs(statistics.correlation([r.prompt_tokens for r in work], waited)) < 0.3
