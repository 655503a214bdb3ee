"""Online re-planning: moves that a plan of what remains asks for, made only where they pay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_migration_planners import (
    BY_TRANSFER,
    FULL,
    PROFILE,
    everybody,
    make_pool,
    make_trajectory,
    proposed,
)

from compiled_kernels import later_compiled, load_and_run
from heddle.control.build import PlaneSettings, kernel_loader
from heddle.control.ports import MigrationProposal, MoveMeans
from heddle.control.state import TrajectoryState, WorkerState
from heddle.migration import MigrationOptions, make_migration_planner
from heddle.migration.options import HIDDEN_SHARE, MovePrice, expected_tool_s
from heddle.planning.cost import DrainingCost
from heddle.planning.drains import Drain, Weights, cap_of
from heddle.planning.residents import relief
from heddle.types import Prediction, WorkerId

SLOTS = 8
POOLS = st.lists(st.lists(st.floats(1, 1e5), max_size=8), min_size=2, max_size=4).filter(any)
ROOMS = st.lists(st.none() | st.integers(0, 2000), min_size=5, max_size=5)


def asked_in_turn(
    workers: Sequence[WorkerState], rounds: int, options: MigrationOptions = BY_TRANSFER
) -> list[MigrationProposal]:
    """Everybody's tools start, one after the other, again and again; every proposal is carried out."""
    planner = make_migration_planner("replan", options)
    planner.prepare(everybody(workers), workers)
    by_id = {worker.worker_id: worker for worker in workers}
    accepted = []
    for trajectory in everybody(workers) * rounds:
        for proposal in planner.propose([trajectory], workers, 0.0):
            move(trajectory, by_id[proposal.source], by_id[proposal.target])
            accepted.append(proposal)
    return accepted


def move(trajectory: TrajectoryState, source: WorkerState, target: WorkerState) -> None:
    """What the control plane does once the transfer has ended."""
    del source.residents[trajectory.trajectory_id]
    target.residents[trajectory.trajectory_id] = trajectory
    trajectory.worker_id = target.worker_id
    trajectory.moves += 1
    target.kv_tokens += trajectory.context_tokens


def homes_of(workers: Sequence[WorkerState]) -> frozenset[tuple[str, WorkerId | None]]:
    return frozenset((t.trajectory_id, t.worker_id) for t in everybody(workers))


def ends(workers: Sequence[WorkerState]) -> list[float]:
    """When each worker has drained."""
    seconds = []
    for worker in workers:
        members = list(worker.residents.values())
        lengths = [t.predicted_remaining_tokens or 0.0 for t in members]
        context = sum(t.context_tokens for t in members) / len(members) if members else 0.0
        weights = Weights(PROFILE[worker.tp_degree], 128)
        seconds.append(Drain(lengths, weights, cap_of(worker, context)).seconds)
    return seconds


@settings(max_examples=25)
@given(lengths=POOLS, rooms=ROOMS, degrees=st.lists(st.sampled_from([1, 4]), min_size=5, max_size=5))
def test_proposals_fit_never_delay_the_end_and_are_not_taken_back(
    lengths: list[list[float]], rooms: list[int | None], degrees: list[int]
) -> None:
    """Against capacity nothing; no worker beyond the present maximum; nothing as it was before."""
    workers = make_pool(*lengths, degrees=degrees[: len(lengths)])
    for worker, room in zip(workers, rooms, strict=False):
        worker.kv_tokens = sum(t.context_tokens for t in worker.residents.values())
        worker.kv_limit_tokens = None if room is None else float(room)
    before = max(ends(workers))
    planner = make_migration_planner("replan", BY_TRANSFER)
    planner.prepare(everybody(workers), workers)
    by_id = {worker.worker_id: worker for worker in workers}
    seen = {homes_of(workers)}
    for trajectory in everybody(workers) * 2:
        for proposal in planner.propose([trajectory], workers, 0.0):
            target = by_id[proposal.target]
            limit = target.kv_limit_tokens
            assert limit is None or target.kv_tokens + trajectory.context_tokens <= limit
            move(trajectory, by_id[proposal.source], target)
            after = max(ends(workers))
            assert after <= before * (1 + 1e-9)
            before = after
            assert homes_of(workers) not in seen
            seen.add(homes_of(workers))


@settings(max_examples=10)
@given(POOLS)
def test_equal_histories_give_equal_proposals(lengths: list[list[float]]) -> None:
    assert asked_in_turn(make_pool(*lengths), 2) == asked_in_turn(make_pool(*lengths), 2)


def test_a_crowd_on_one_worker_is_spread_over_both() -> None:
    workers = make_pool([1000.0] * 8, [])

    moves = asked_in_turn(workers, 2)

    assert {(m.source, m.target) for m in moves} == {("w0", "w1")}
    assert [worker.resident for worker in workers] == [4, 4]


def test_balanced_workers_are_left_as_they_are() -> None:
    """Though a plan from nothing would put the long ones together."""
    assert asked_in_turn(make_pool([9000.0, 10.0, 500.0], [9000.0, 10.0, 500.0]), 2) == []


def test_without_trust_nothing_is_proposed() -> None:
    distrusting = MigrationOptions(PROFILE, transfer_tokens_per_s=lambda: 1e5)
    assert asked_in_turn(make_pool([1000.0] * 8, []), 2, distrusting) == []
    doubtful = replace(distrusting, trust=lambda: replace(FULL, tail_recall=0.7))
    assert asked_in_turn(make_pool([1000.0] * 8, []), 2, doubtful) == []


def test_where_memory_is_short_nothing_is_planned() -> None:
    """Eight contexts of 100 tokens, and room for seven on both workers together; for nine, and some move."""
    for room, moved in ((350.0, 0), (450.0, 4)):
        workers = make_pool([1000.0] * 8, [])
        for worker in workers:
            worker.kv_limit_tokens = room
        assert len(asked_in_turn(workers, 2)) == moved


def test_moves_that_cost_more_than_the_plan_gains_are_not_made() -> None:
    """Contexts that take longer to compute anew than a balance saves."""
    workers = make_pool([1000.0] * 8, [])
    for trajectory in everybody(workers):
        trajectory.context_tokens = 20_000
    assert asked_in_turn(workers, 2, MigrationOptions(PROFILE, trust=lambda: FULL)) == []


def test_a_transfer_costs_little_behind_a_long_tool_and_nothing_goes_behind_a_short_one() -> None:
    """The tool's time is what is predicted for a step, else what earlier ones took in the mean."""
    options = MigrationOptions(PROFILE, transfer_tokens_per_s=lambda: 1000.0)
    (target,) = make_pool([])
    asked = make_trajectory("t", 100.0, context=500)
    assert expected_tool_s(asked) is None
    assert options.price(asked, target) == MovePrice(0.5, MoveMeans.TRANSFER)
    asked.prediction = Prediction(100.0, 100.0, 100.0, 1, "test", remaining_steps=4.0, tool_seconds=8.0)
    assert expected_tool_s(asked) == 2.0
    assert options.price(asked, target) == MovePrice(HIDDEN_SHARE * 0.5, MoveMeans.TRANSFER)
    asked.prediction = None
    asked.steps_done, asked.tool_seconds = 3, 0.2
    assert expected_tool_s(asked) == 0.1
    assert options.price(asked, target) == MovePrice(0.5, MoveMeans.RECOMPUTE)
    no_prefill = MigrationOptions(transfer_tokens_per_s=lambda: 1000.0)
    assert no_prefill.price(asked, target) is None


def test_gated_moves_by_the_cheaper_way() -> None:
    """A tool too short for the transfer: the target computes the context, if that pays."""
    workers = make_pool([9000.0] * 4, [10.0])
    asked = everybody(workers)[0]
    asked.steps_done, asked.tool_seconds = 11, 0.001
    (proposal,) = proposed("gated", workers, "w0-0")
    assert proposal.means is MoveMeans.RECOMPUTE


COST = DrainingCost(
    (4, 1), np.stack([PROFILE[4].step_table(64), PROFILE[1].step_table(64)]), np.array([16, 4], np.int64)
)
GROUPS = st.integers(2, 5).flatmap(
    lambda workers: st.tuples(
        st.lists(st.sampled_from([4, 1]), min_size=workers, max_size=workers),
        st.lists(st.tuples(st.floats(0, 1e5), st.integers(0, workers - 1)), min_size=1, max_size=40),
    )
)


@settings(max_examples=100)
@given(GROUPS, st.sampled_from([0.0, 0.1, np.inf]))
def test_relief_never_ends_later_and_moves_nobody_who_must_stay(
    problem: tuple[list[int], list[tuple[float, int]]], cost_s: float
) -> None:
    """Whatever the homes; the ends that it tells of are those of the owners that it gives."""
    degrees = sorted(problem[0], reverse=True)
    lengths = np.array([length for length, _ in problem[1]])
    homes = np.array([home for _, home in problem[1]], np.int64)

    found = relief(lengths, homes, degrees, COST, np.full(len(lengths), cost_s))

    assert found.then_s <= found.now_s
    if cost_s == np.inf:
        assert (found.owners == homes).all()
    for owners, last_s in ((homes, found.now_s), (found.owners, found.then_s)):
        groups = [np.sort(lengths[owners == worker])[::-1] for worker in range(len(degrees))]
        seconds = [COST.seconds(degree, group) for degree, group in zip(degrees, groups, strict=True)]
        assert max(seconds) == pytest.approx(last_s)


def test_relief_moves_as_few_as_it_takes() -> None:
    """Two of six equal ones, though a plan from nothing might have named any three."""
    found = relief(np.full(6, 1000.0), np.array([0, 0, 0, 0, 0, 1]), (1, 1), COST, np.zeros(6))
    assert np.bincount(found.owners).tolist() == [3, 3]
    assert (found.owners != np.array([0, 0, 0, 0, 0, 1])).sum() == 2


def plan() -> None:
    """On workers of two degrees."""
    rng = np.random.default_rng(0)
    asked_in_turn(make_pool(rng.exponential(1000.0, 60).tolist(), [], [5.0], degrees=(1, 4, 1)), 1)


def test_the_first_plan_finds_everything_compiled() -> None:
    """In a process of its own: here, other tests have compiled already."""
    assert later_compiled(__file__) == "later: []"


def test_planners_without_kernels_load_none() -> None:
    assert kernel_loader(PlaneSettings(migration="gated")) is None


if __name__ == "__main__":
    load_and_run(kernel_loader(PlaneSettings(migration="replan")), plan)
