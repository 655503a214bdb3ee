"""Migration planners propose moves: what all have in common, and what each is for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.control.ports import MigrationProposal, MoveMeans
from heddle.control.state import TrajectoryState, WorkerState
from heddle.errors import ConfigError
from heddle.migration import MIGRATION_PLANNERS, MigrationOptions, make_migration_planner
from heddle.migration.gate import MOST_MOVES
from heddle.planning.drains import Drain, Weights
from heddle.planning.profile import DegreeProfile, Profile
from heddle.types import BatchId, GroupId, Prediction, TrajectoryId, TrajectoryPhase, Trust, WorkerId

NAMES = tuple(MIGRATION_PLANNERS)
PROFILE = Profile(
    "",
    "",
    1000.0,
    (
        DegreeProfile.measured(1, [(1, 0.010), (8, 0.040)], prefill_tokens_per_s=1000.0),
        DegreeProfile.measured(4, [(1, 0.004), (8, 0.016)], prefill_tokens_per_s=4000.0),
    ),
)
FULL = Trust(tail_recall=1.0, rank_correlation=1.0, coverage=0.9, samples=1000)
BY_TRANSFER = MigrationOptions(PROFILE, transfer_tokens_per_s=lambda: 1e5, trust=lambda: FULL)
BY_RECOMPUTING = MigrationOptions(PROFILE, trust=lambda: FULL)


def make_trajectory(
    name: str, remaining: float | None, *, context: int = 100, generated: int = 0
) -> TrajectoryState:
    trajectory = TrajectoryState(
        TrajectoryId(name), BatchId("b"), GroupId("g"), 0.0, 100, context, generated, 1, 0.0, 0.0
    )
    trajectory.phase = TrajectoryPhase.IN_TOOL
    if remaining is not None:
        trajectory.prediction = Prediction(remaining, remaining, remaining, 1, "test")
        trajectory.predicted_at_tokens = generated
    return trajectory


def make_pool(
    *residents: Sequence[float | None], degrees: Sequence[int] = (), slots: int = 8
) -> list[WorkerState]:
    """A worker for each list of remaining tokens; trajectories are named ``w0-0`` and so on."""
    workers = []
    for index, lengths in enumerate(residents):
        worker = WorkerState(WorkerId(f"w{index}"), degrees[index] if degrees else 1, slots)
        for number, remaining in enumerate(lengths):
            trajectory = make_trajectory(f"w{index}-{number}", remaining)
            trajectory.worker_id = worker.worker_id
            worker.residents[trajectory.trajectory_id] = trajectory
        workers.append(worker)
    return workers


def everybody(workers: Sequence[WorkerState]) -> list[TrajectoryState]:
    return [trajectory for worker in workers for trajectory in worker.residents.values()]


def proposed(
    planner: str, workers: Sequence[WorkerState], name: str, options: MigrationOptions = BY_TRANSFER
) -> list[MigrationProposal]:
    """What a fresh planner makes of one trajectory whose tools have started."""
    made = make_migration_planner(planner, options)
    made.prepare(everybody(workers), workers)
    asked = next(t for t in everybody(workers) if t.trajectory_id == name)
    return list(made.propose([asked], workers, 0.0))


POOLS = st.lists(st.lists(st.none() | st.floats(0, 1e5), max_size=12), min_size=1, max_size=5).filter(any)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60)
@given(lengths=POOLS, data=st.data())
def test_proposals_are_for_those_asked_about_and_lead_to_other_workers(
    name: str, lengths: list[list[float | None]], data: st.DataObject
) -> None:
    """From where it lives, the same again for the same, and nothing is remembered of those that ended."""
    workers = make_pool(*lengths)
    planner, again = (make_migration_planner(name, BY_TRANSFER) for _ in range(2))
    for made in (planner, again):
        made.prepare(everybody(workers), workers)
    for _ in range(4):
        asked = data.draw(st.sampled_from(everybody(workers)))
        proposals = list(planner.propose([asked], workers, 1.0))
        assert proposals == list(again.propose([asked], workers, 1.0))
        for proposal in proposals:
            assert (proposal.trajectory_id, proposal.source) == (asked.trajectory_id, asked.worker_id)
            assert proposal.target in {w.worker_id for w in workers} - {asked.worker_id}
    for made in (planner, again):
        made.forget(TrajectoryId("nobody"))


@pytest.mark.parametrize("name", NAMES)
def test_a_planner_is_known_by_its_name(name: str) -> None:
    """The name that makes it is the name that it says."""
    assert make_migration_planner(name, BY_TRANSFER).name == name


def test_none_proposes_nothing() -> None:
    """A trajectory stays where it was placed."""
    assert proposed("none", make_pool([900.0, 900.0], []), "w0-0") == []


def test_rank_keeps_the_proportions_of_the_groups() -> None:
    """Two of six were on the fast worker: the two longest that are left belong there."""
    workers = make_pool([50.0, 40.0, 900.0, 30.0], [20.0, 800.0], degrees=(1, 4))

    moves = {t.trajectory_id: proposed("rank", workers, t.trajectory_id) for t in everybody(workers)}

    assert [(m.source, m.target, m.urgency) for m in moves[TrajectoryId("w0-2")]] == [("w0", "w1", 900.0)]
    assert [(m.source, m.target) for m in moves[TrajectoryId("w1-0")]] == [("w1", "w0")]
    assert [name for name, move in moves.items() if not move] == ["w0-0", "w0-1", "w0-3", "w1-1"]


def test_rank_follows_new_estimates_and_endings() -> None:
    """A renewed estimate replaces the old one; whoever ended has no rank."""
    workers = make_pool([100.0, 90.0], [80.0, 70.0], degrees=(4, 1))
    planner = make_migration_planner("rank", BY_RECOMPUTING)
    planner.prepare(everybody(workers), workers)
    short, long = everybody(workers)[0], everybody(workers)[3]

    long.prediction = Prediction(500.0, 500.0, 500.0, 1, "test")
    (move,) = planner.propose([long], workers, 0.0)
    assert (move.target, move.means) == ("w0", MoveMeans.RECOMPUTE)
    short.prediction = Prediction(60.0, 60.0, 60.0, 1, "test")
    assert [m.target for m in planner.propose([short], workers, 0.0)] == ["w1"]
    planner.forget(short.trajectory_id)
    assert list(planner.propose([everybody(workers)[1]], workers, 0.0)) == []


def test_gated_moves_from_a_full_worker_to_an_empty_one() -> None:
    """Whoever moves, both ends are sooner."""
    (move,) = proposed("gated", make_pool([900.0] * 4, [10.0]), "w0-0")

    assert (move.source, move.target, move.means) == ("w0", "w1", MoveMeans.TRANSFER)
    assert move.urgency == 900.0


def test_gated_leaves_alone_whom_a_move_does_not_help() -> None:
    """Balanced workers; one that ends early anyway; one that would only shift the end elsewhere."""
    assert proposed("gated", make_pool([900.0, 900.0], [900.0, 900.0]), "w0-0") == []
    assert proposed("gated", make_pool([300.0, 300.0], [], [900.0]), "w0-0") == []
    assert proposed("gated", make_pool([900.0], []), "w0-0") == []


def test_gated_asks_for_the_price() -> None:
    """A context that takes longer to compute anew than the move saves; by transfer it would be quick."""
    workers = make_pool([900.0] * 4, [10.0])
    for trajectory in everybody(workers):
        trajectory.context_tokens = 5_000

    assert proposed("gated", workers, "w0-0", BY_RECOMPUTING) == []
    assert len(proposed("gated", workers, "w0-0", BY_TRANSFER)) == 1


def test_gated_moves_a_long_one_to_the_faster_worker() -> None:
    """Though as many live there."""
    (move,) = proposed("gated", make_pool([5000.0, 10.0], [20.0, 10.0], degrees=(1, 4)), "w0-0")

    assert move.target == "w1"


def test_gated_without_trust_evens_out_numbers() -> None:
    """Lengths do not matter then: many short ones weigh more than one long one."""
    workers = make_pool([10.0] * 6, [900.0])
    distrusting = MigrationOptions(PROFILE, transfer_tokens_per_s=lambda: 1e5)

    assert [m.target for m in proposed("gated", workers, "w0-0", distrusting)] == ["w1"]
    assert proposed("gated", workers, "w0-0", BY_TRANSFER) == []


def test_gated_leaves_workers_alone_that_a_transfer_touches() -> None:
    """Two estimates must not count on the same gap."""
    for touched in (0, 1):
        workers = make_pool([900.0] * 4, [10.0])
        workers[touched].transfers = 1
        assert proposed("gated", workers, "w0-0") == []


def test_gated_respects_memory_and_the_number_of_moves() -> None:
    """A target without room; a trajectory that has moved often enough."""
    workers = make_pool([900.0] * 4, [10.0])
    workers[1].kv_limit_tokens, workers[1].kv_tokens = 150.0, 100
    assert proposed("gated", workers, "w0-0") == []
    workers = make_pool([900.0] * 4, [10.0])
    everybody(workers)[0].moves = MOST_MOVES
    assert proposed("gated", workers, "w0-0") == []


def test_gated_needs_prices() -> None:
    """A profile at all, a degree in it, and a prefill rate where nothing can be transferred."""
    with pytest.raises(ConfigError, match="migration gated needs a profile"):
        make_migration_planner("gated")
    assert proposed("gated", make_pool([900.0] * 4, [10.0], degrees=(1, 2)), "w0-0") == []
    unknown = Profile("", "", 1.0, (DegreeProfile.measured(1, [(1, 0.01), (8, 0.04)]),))
    options = MigrationOptions(unknown, trust=lambda: FULL)
    assert proposed("gated", make_pool([900.0] * 4, [10.0]), "w0-0", options) == []


@settings(max_examples=150)
@given(
    st.lists(st.floats(0, 1e5), max_size=20),
    st.floats(0, 1e5),
    st.integers(1, 25),
    st.lists(st.floats(0, 0.1), min_size=3, max_size=3),
)
def test_a_drain_with_and_without_a_member_is_the_drain_of_those_members(
    lengths: list[float], length: float, cap: int, rises: list[float]
) -> None:
    """Against a fresh one; the sums in between are only a way to have it quickly."""
    points = [(1, 0.01), (4, 0.01 + rises[0]), (16, 0.01 + rises[0] + rises[1])]
    weights = Weights(DegreeProfile.measured(1, points), 64)
    drain = Drain(lengths, weights, cap)
    larger = Drain([*lengths, length], weights, cap)

    assert drain.with_member(length) == pytest.approx(larger.seconds)
    assert larger.without_member(length) == pytest.approx(drain.seconds)


def test_a_drain_within_its_cap_runs_to_the_end_of_its_longest() -> None:
    """Three members: all at a step of three, two at a step of two, one alone."""
    degree = DegreeProfile.measured(1, [(1, 1.0), (2, 1.5), (3, 1.75)])

    assert Drain([10.0, 30.0, 20.0], Weights(degree, 8), 3).seconds == 10 * 1.75 + 10 * 1.5 + 10 * 1.0
    assert np.isclose(Drain([10.0] * 4, Weights(degree, 8), 2).seconds, 2 * 10 * 1.5)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    """A misspelt planner is a ConfigError."""
    with pytest.raises(ConfigError, match="choose one of none, rank, gated, replan"):
        make_migration_planner("rnak")
