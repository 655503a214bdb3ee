"""The lower bound: nothing that was simulated goes below it, and where all is known by hand it is met."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim_builders import make_hardware, make_trajectory, make_workload

from heddle.allocation import SlotRule
from heddle.control.build import PlaneSettings
from heddle.simulate.bounds import Bound, budget_bound, pool_bound
from heddle.simulate.hardware import Hardware, PrefillMode
from heddle.simulate.result import SimulationResult
from heddle.simulate.simulator import simulate
from heddle.simulate.workload import Workload, WorkTrajectory
from heddle.types import WorkerId, WorkerSpec

TOLERANCE = 1e-6
"""Relative; a simulated clock adds up thousands of durations."""


def play(workload: Workload, plane: PlaneSettings, hardware: Hardware) -> SimulationResult:
    """Any seed will do: nothing here draws."""
    return simulate(workload, plane, hardware, seed=0, configuration="test")


def bounds_of(
    workload: Workload, plane: PlaneSettings, hardware: Hardware, result: SimulationResult
) -> tuple[Bound, Bound]:
    """For the pool that ran and for the budget."""
    pool = [WorkerSpec(use.worker_id, use.tp_degree, use.slots) for use in result.workers]
    most = plane.max_preemptions_per_step if plane.preemption else 0
    return (
        pool_bound(workload, hardware, pool, max_preemptions_per_step=most),
        budget_bound(workload, hardware, SlotRule(plane.slots), max_preemptions_per_step=most),
    )


@st.composite
def trajectories(draw: st.DrawFn, name: str) -> WorkTrajectory:
    """Up to four steps; a few prompts are shared."""
    tokens = draw(st.lists(st.integers(1, 120), min_size=1, max_size=4))
    tools = [draw(st.sampled_from((0.0, 0.3, 2.0))) for _ in tokens[1:]]
    return make_trajectory(
        name,
        tokens,
        prompt=draw(st.sampled_from((1, 50, 400))),
        observed=draw(st.sampled_from((0, 30))),
        tool_s=tools,
        group=draw(st.sampled_from(("a", "b", name))),
        arrival_s=draw(st.sampled_from((0.0, 0.0, 1.5))),
    )


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Up to ten trajectories."""
    count = draw(st.integers(1, 10))
    return make_workload(*(draw(trajectories(f"t{index}")) for index in range(count)))


@settings(max_examples=150)
@given(
    workload=workloads(),
    pool=st.sampled_from(("1", "1+1", "2", "2+1", "4")),
    slots=st.integers(1, 5),
    scheduler=st.sampled_from(("fcfs", "progressive", "shortest_first")),
    kv_tokens=st.sampled_from((None, 700, 1500)),
    mode=st.sampled_from(PrefillMode),
    chunk_tokens=st.sampled_from((64, 512)),
    abort_s=st.sampled_from((0.0, 0.02)),
    share_prompts=st.booleans(),
)
def test_no_run_goes_below_its_bounds(
    workload: Workload,
    pool: str,
    slots: int,
    scheduler: str,
    kv_tokens: int | None,
    mode: PrefillMode,
    chunk_tokens: int,
    abort_s: float,
    share_prompts: bool,
) -> None:
    """Whatever the pool, the scheduler, preemptions, memory and the way of prefilling."""
    hardware = make_hardware(
        gpus=4,
        degrees=(1, 2, 4),
        kv_tokens=kv_tokens,
        mode=mode,
        chunk_tokens=chunk_tokens,
        abort_s=abort_s,
        share_prompts=share_prompts,
    )
    plane = PlaneSettings(
        pool=pool, slots=slots, scheduler=scheduler, predictor="oracle", preempt_margin_tokens=1.0
    )
    result = play(workload, plane, hardware)
    of_pool, of_budget = bounds_of(workload, plane, hardware, result)
    assert of_pool.seconds <= result.makespan_s * (1 + TOLERANCE)
    assert of_budget.seconds <= result.makespan_s * (1 + TOLERANCE)
    for bound in (of_pool, of_budget):
        assert 0 < max(bound.longest_s, bound.work_s) <= bound.seconds * (1 + TOLERANCE)


def alone(hardware: Hardware, *members: WorkTrajectory, slots: int = 1) -> tuple[float, Bound]:
    """Makespan and bound on one worker of degree 1 that nobody is preempted on."""
    plane = PlaneSettings(pool="1", slots=slots, preemption=False)
    workload = make_workload(*members)
    result = play(workload, plane, hardware)
    return result.makespan_s, bounds_of(workload, plane, hardware, result)[0]


def test_a_trajectory_alone_meets_its_bound() -> None:
    """Prompt, decoding at growing contexts, tools and appended tokens, to the token."""
    lonely = make_trajectory("t", [200, 1, 50], prompt=1000, observed=300, tool_s=2.0, arrival_s=3.0)
    makespan_s, bound = alone(make_hardware(), lonely)
    # What a step sampled last is computed with the next prompt: ten milliseconds that the bound leaves out.
    assert pytest.approx(makespan_s, abs=0.011) == bound.longest_s
    assert bound.longest_s <= makespan_s
    assert pytest.approx(bound.longest_s) == bound.seconds


def test_a_full_worker_meets_the_bound_of_its_work() -> None:
    """Sixty equal trajectories in six slots; what is left is the tenth of a percent that prompts overlap."""
    members = [make_trajectory(f"t{index}", [400], prompt=10) for index in range(60)]
    makespan_s, bound = alone(make_hardware(), *members, slots=6)
    assert 0.95 * makespan_s < bound.work_s <= makespan_s
    assert bound.longest_s < 0.5 * bound.work_s


def test_memory_limits_how_many_share_a_worker() -> None:
    """Contexts of 500 to 900 tokens in a memory of 2,000: two or three at once, however many slots."""
    members = [make_trajectory(f"t{index}", [400], prompt=500) for index in range(40)]
    makespan_s, bound = alone(make_hardware(kv_tokens=2000), *members, slots=20)
    _, without = alone(make_hardware(), *members, slots=20)
    assert 0.6 * makespan_s < bound.work_s <= bound.seconds <= makespan_s
    assert without.work_s < 0.7 * bound.work_s


def test_who_is_in_a_hurry_cannot_share_its_worker() -> None:
    """One long and many short: both bounds alone are far from what both together demand."""
    long = make_trajectory("long", [2000], prompt=1)
    short = [make_trajectory(f"t{index}", [100], prompt=1) for index in range(100)]
    _, bound = alone(make_hardware(), long, *short, slots=20)
    assert bound.seconds > 1.15 * max(bound.longest_s, bound.work_s)


def pool(*degrees: int) -> Sequence[WorkerSpec]:
    """Workers with four slots each."""
    return [WorkerSpec(WorkerId(f"w{index}"), degree, 4) for index, degree in enumerate(degrees)]


def test_more_workers_and_larger_budgets_lower_the_bound() -> None:
    """And no pool of the budget has a bound below the budget's."""
    hardware = make_hardware(gpus=4, degrees=(1, 2, 4))
    workload = make_workload(*(make_trajectory(f"t{i}", [100 * (1 + i % 5)]) for i in range(40)))
    of = {
        degrees: pool_bound(workload, hardware, pool(*degrees), max_preemptions_per_step=0).seconds
        for degrees in ((1,), (1, 1), (1, 1, 1, 1), (2, 1, 1), (2, 2), (4,))
    }
    assert of[1,] > of[1, 1] > of[1, 1, 1, 1]
    assert of[2, 1, 1] < of[1, 1]
    budget = budget_bound(workload, hardware, SlotRule(4), max_preemptions_per_step=0).seconds
    assert budget <= min(seconds for degrees, seconds in of.items() if sum(degrees) <= 4) * (1 + TOLERANCE)


def test_nothing_to_do_takes_no_time() -> None:
    """An empty workload."""
    empty = Workload("empty", ())
    assert 0.0 == pool_bound(empty, make_hardware(), pool(1), max_preemptions_per_step=2).seconds
