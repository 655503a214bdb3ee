"""The memory guard: who loses its claim, who gets it back, and that size decides neither."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence

import pytest
from control_rig import Rig, generated, make_spec
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual_world import Recorded, VirtualWorld

from heddle.control.build import PlaneSettings
from heddle.control.dispatch import DispatchRules
from heddle.control.events import BatchSubmitted
from heddle.control.guard import GuardRules
from heddle.control.parked import ParkingLot
from heddle.scheduling import SCHEDULERS
from heddle.types import BatchId, StopReason, TrajectoryId, WorkerId


def make_rig(
    capacity: int | None, *, slots: int = 2, aged_after_s: float = 1000.0, enabled: bool = True
) -> Rig:
    """One worker; limits of 0.9 and 0.8 of the capacity."""
    rules = DispatchRules(guard=GuardRules(enabled=enabled, aged_after_s=aged_after_s))
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


def test_under_pressure_whoever_is_longest_in_its_tool_loses_its_claim() -> None:
    """Before the next prefix would no longer fit; it is held back when it comes."""
    rig = make_rig(1000)
    submit(rig, a=300, b=300, c=300, d=100)
    assert to_tool(rig, "a") == [("c", "w0")]
    assert held(rig) == 600
    assert to_tool(rig, "b") == [("d", "w0")]

    assert held(rig) == 310 + 300 + 100
    assert rig.trajectory("a").held_back
    assert reason(rig, "a") == "step 0 runs python; the memory guard will hold it back after that"
    assert generated(rig.tools_finished("b", appended=5)) == []
    assert reason(rig, "b") == "2 of 2 slots of w0 are taken; next in line"
    rig.tools_finished("a", appended=5)
    assert reason(rig, "a") == (
        "held back by the memory guard until its 315 tokens fit; 715 of 1000 tokens of w0 are held"
    )
    assert rig.plane.queue(WorkerId("w0"), 9) == ("b",)


def test_it_returns_when_there_is_room_below_the_lower_limit() -> None:
    """And then queues at its own rank."""
    rig = make_rig(1000)
    submit(rig, a=300, b=300, c=300, d=100)
    to_tool(rig, "a")
    to_tool(rig, "b")
    rig.tools_finished("a", appended=5)
    assert rig.trajectory("a").held_back

    assert generated(rig.finish("c")) == [("a", "w0")]
    assert not rig.trajectory("a").held_back
    assert held(rig) == 310 + 100 + 315


def test_the_next_in_line_gets_memory_from_the_end_of_the_line_if_need_be() -> None:
    """Where no tool runs, whoever is last of those that wait gives way."""
    rig = make_rig(1000, slots=1)
    submit(rig, a=300, b=300, c=300)
    for name in ("a", "b"):
        rig.step(name, output=10)
        rig.tools_finished(name, appended=0)
    assert rig.plane.queue(WorkerId("w0"), 9) == ("a", "b")
    assert held(rig) == 310 + 310 + 300 - 310 * rig.trajectory("b").held_back


def test_nothing_is_guarded_where_the_capacity_is_unknown_or_the_guard_is_off() -> None:
    """Then engines have to cope by themselves."""
    for rig in (make_rig(None), make_rig(100, enabled=False)):
        submit(rig, a=300, b=300, c=300)
        to_tool(rig, "a")
        assert not rig.trajectory("a").held_back


def test_a_worker_where_nothing_runs_takes_whatever_is_next() -> None:
    """Too small a cache is slow; it must not be the end."""
    rig = make_rig(100, slots=2)
    assert submit(rig, a=300, b=300) == [("a", "w0")]
    assert reason(rig, "b") == "w0 lacks memory for the next in line; next in line"
    assert to_tool(rig, "a") == [("b", "w0")]
    rig.tools_finished("a")
    assert rig.trajectory("a").held_back
    assert generated(rig.finish("b")) == [("a", "w0")]


def test_whoever_was_held_back_for_long_is_not_overtaken() -> None:
    """A smaller one that would fit has to wait until it is its turn."""
    rig = make_rig(1000, slots=1, aged_after_s=20.0)
    submit(rig, big=500, small=100, runs=350)
    assert to_tool(rig, "big", output=0) == [("small", "w0")]
    assert to_tool(rig, "small", output=0) == [("runs", "w0")]
    assert rig.trajectory("big").held_back
    rig.tools_finished("big", appended=0)
    rig.now += 30.0
    rig.tools_finished("small", appended=0)
    assert held(rig) <= 900
    assert generated(rig.finish("runs")) != []
    assert not rig.trajectory("big").held_back


def test_a_lost_worker_takes_its_claims_with_it() -> None:
    """Whoever was held back there waits elsewhere like anybody else."""
    rig = make_rig(1000)
    submit(rig, a=300, b=300, c=300, d=100)
    to_tool(rig, "a")
    to_tool(rig, "b")
    rig.tools_finished("a")
    rig.lost("w0")
    assert not rig.trajectory("a").held_back
    assert held(rig) == 400
    assert TrajectoryId("a") in rig.plane.state.unplaced


def test_a_held_back_trajectory_can_be_cancelled() -> None:
    """It leaves the parking lot with the order to end."""
    rig = make_rig(1000)
    submit(rig, a=300, b=300, c=300, d=100)
    to_tool(rig, "a")
    to_tool(rig, "b")
    rig.tools_finished("a")
    rig.finish("a", StopReason.CANCELLED)
    assert not rig.plane.state.workers[WorkerId("w0")].parked


def test_best_fit_is_the_largest_that_fits() -> None:
    """Of equals the latest; nothing where nothing fits."""
    lot = ParkingLot()
    for arrival, (name, size) in enumerate([("a", 300), ("b", 100), ("c", 200), ("d", 200)]):
        lot.push(TrajectoryId(name), size, arrival)
    assert [lot.best_fit(room) for room in (99, 100, 250, 1e9)] == [None, "b", "d", "a"]
    lot.remove(TrajectoryId("d"))
    assert (lot.best_fit(250), lot.oldest(), lot.ids()) == ("c", "a", ("a", "b", "c"))


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
