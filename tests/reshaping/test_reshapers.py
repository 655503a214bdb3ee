"""The reshapers: what they propose fits, pays by their own price, and is nothing where nothing is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.control.state import TrajectoryState
from heddle.errors import ConfigError
from heddle.planning.drains import Weights, tokens_within
from heddle.planning.kernels.draining import group_seconds
from heddle.planning.profile import DegreeProfile, Profile
from heddle.reshaping import RESHAPERS, ReshapingOptions, make_reshaper
from heddle.reshaping.residual import KEPT, Residuals
from heddle.reshaping.tail import TailReshaper
from heddle.types import (
    BatchId,
    GroupId,
    Prediction,
    TrajectoryId,
    TrajectoryPhase,
    Trust,
    WorkerId,
    WorkerPhase,
)

DEGREES = (1, 2, 4)
STEP_S = 0.01
FULL = Trust(tail_recall=1.0, rank_correlation=1.0, coverage=1.0, samples=1000)
PROFILE = Profile(
    "gpu",
    "model",
    0.0,
    tuple(
        DegreeProfile.measured(
            degree,
            [(1, STEP_S / degree), (100, 5 * STEP_S / degree)],
            prefill_tokens_per_s=1000.0 * degree,
        )
        for degree in DEGREES
    ),
)


@dataclass
class Worker:
    """A ready worker with residents of known remaining tokens."""

    worker_id: WorkerId
    tp_degree: int
    residents: dict[TrajectoryId, TrajectoryState] = field(default_factory=dict)
    slots: int = 64
    phase: WorkerPhase = WorkerPhase.READY
    running: int = 0
    waiting: int = 0
    kv_tokens: int = 0
    kv_limit_tokens: float | None = None
    transfers: int = 0
    placed_total: int = 0

    @property
    def resident(self) -> int:
        return len(self.residents)


def make_workers(*groups: tuple[int, Sequence[int]], generated: int = 0) -> list[Worker]:
    """Of each the degree and what its residents have to generate."""
    workers = []
    for index, (degree, lengths) in enumerate(groups):
        worker = Worker(WorkerId(f"w{index}"), degree)
        for number, tokens in enumerate(lengths):
            name = TrajectoryId(f"w{index}-t{number}")
            worker.residents[name] = TrajectoryState(
                trajectory_id=name,
                batch_id=BatchId("b"),
                group_id=GroupId("g"),
                submitted_at=0.0,
                max_tokens=1 << 30,
                context_tokens=100,
                generated_tokens=generated,
                steps_done=1,
                queued_at=0.0,
                phase_since=0.0,
                phase=TrajectoryPhase.GENERATING,
                worker_id=worker.worker_id,
                prediction=Prediction(tokens, tokens, tokens, 1, "test"),
                predicted_at_tokens=generated,
            )
        workers.append(worker)
    return workers


def make_tail(trust: Trust | None = FULL, transfer_tokens_per_s: float | None = None) -> TailReshaper:
    return TailReshaper(
        ReshapingOptions(PROFILE, lambda degree: 64, lambda: transfer_tokens_per_s, lambda: trust)
    )


def test_idle_gpus_become_a_worker_for_a_long_straggler() -> None:
    workers = make_workers((1, [100_000]), (1, []), (1, []), (1, []), (1, []))
    proposal = make_tail().propose(workers, 30.0)
    assert proposal is not None
    assert proposal.drain == ("w1", "w2", "w3", "w4")
    assert proposal.degrees == (4,)
    # Alone 1,000 s; 970 s of it go on four times as fast, after 0.025 s of computing its 100 tokens anew;
    # and four GPUs of five will once more be away for 30 s.
    assert proposal.saved_s == pytest.approx(1000 - 30 - 970 / 4 - 0.025 - 24)


def test_a_start_that_takes_too_long_is_not_worth_it() -> None:
    workers = make_workers((1, [10_000]), (1, []), (1, []), (1, []), (1, []))
    assert make_tail().propose(workers, 30.0) is not None
    assert make_tail().propose(workers, 60.0) is None


def test_workers_with_little_to_do_are_emptied_where_that_pays() -> None:
    workers = make_workers((1, [100_000]), (1, [2000]), (1, [1000]))
    proposal = make_tail().propose(workers, 30.0)
    assert proposal is not None
    assert set(proposal.drain) == {"w1", "w2"}
    assert proposal.degrees == (2,)


def test_the_last_worker_is_never_drained() -> None:
    assert make_tail().propose(make_workers((1, [100_000])), 30.0) is None
    assert make_tail().propose(make_workers((2, [100_000]), (2, [])), 30.0) is None


def test_without_trust_and_without_a_past_nothing_is_proposed() -> None:
    workers = make_workers((1, [100_000]), (1, []), (1, []), (1, []), (1, []))
    assert make_tail(trust=None).propose(workers, 30.0) is None


def test_without_trust_the_past_counts() -> None:
    workers = make_workers((1, [5]), (1, []), (1, []), (1, []), (1, []), generated=50_000)
    reshaper = make_tail(trust=None)
    for tokens in (100, 200, 80_000, 100_000, 120_000, 140_000):
        (finished,) = make_workers((1, [0]), generated=tokens)[0].residents.values()
        reshaper.observe_finished(finished)
    proposal = reshaper.propose(workers, 30.0)
    assert proposal is not None
    assert proposal.degrees == (4,)


def test_the_longest_move_until_others_end_last() -> None:
    workers = make_workers((1, [50_000, 40_000]), (1, [30_000]), (4, []))
    moved = make_tail().assign(workers, [WorkerId("w2")])
    assert moved == dict.fromkeys(("w0-t0", "w0-t1", "w1-t0"), "w2")
    workers = make_workers((1, [50_000, 100]), (4, []))
    assert make_tail().assign(workers, [WorkerId("w1")]) == {"w0-t0": "w1"}


def test_nobody_moves_where_the_move_takes_longer_than_what_is_left() -> None:
    workers = make_workers((1, [100]), (4, []))
    (trajectory,) = workers[0].residents.values()
    trajectory.context_tokens = 100_000
    assert make_tail().assign(workers, [WorkerId("w1")]) == {}
    assert make_tail(transfer_tokens_per_s=1e6).assign(workers, [WorkerId("w1")]) == {"w0-t0": "w1"}


lengths = st.lists(st.integers(1, 300_000), max_size=5)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(DEGREES), lengths), min_size=1, max_size=8), st.floats(1, 120))
def test_what_is_proposed_fits_and_pays(groups: list[tuple[int, list[int]]], start_s: float) -> None:
    """It needs no more GPUs than it frees, leaves a worker, and saves a good part of what is left."""
    workers = make_workers(*groups)
    proposal = make_tail().propose(workers, start_s)
    if proposal is None:
        return
    held = {worker.worker_id: worker.tp_degree for worker in workers}
    assert len(set(proposal.drain)) == len(proposal.drain) < len(workers)
    assert 0 < sum(proposal.degrees) <= sum(held[name] for name in proposal.drain)
    table = PROFILE[1].step_table(100)
    stay_s = max(
        group_seconds(np.array(sorted(tokens, reverse=True), float), table / degree, 64)
        for degree, tokens in groups
    )
    assert 0.1 * stay_s < proposal.saved_s <= stay_s - start_s


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(1, 1000), min_size=1, max_size=12), st.floats(0, 100))
def test_tokens_within_a_time_are_what_the_events_give(members: list[float], seconds: float) -> None:
    """Without waiting, running a group until then and then to its end takes as long as running it."""
    ascending = sorted(members)
    weights = Weights(PROFILE[1], 64)
    table = PROFILE[1].step_table(64)
    done = tokens_within(ascending, weights, 64, seconds)
    whole = group_seconds(np.array(ascending[::-1]), table, 64)
    left = np.array([tokens - done for tokens in ascending[::-1] if tokens > done])
    rest = group_seconds(left, table, 64) if len(left) else 0.0
    assert rest == pytest.approx(max(0.0, whole - seconds), abs=1e-6)


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(0, 50))
def test_residuals_are_those_of_longer_ones(finished: list[int], generated: int) -> None:
    residuals = Residuals()
    for tokens in finished:
        residuals.observe(tokens)
    longer = sorted(tokens for tokens in finished if tokens > generated)
    expected = longer[(len(longer) - 1) // 2] - generated if len(longer) >= 4 else 0
    assert residuals.median(generated) == expected


def test_residuals_forget_what_is_long_past() -> None:
    residuals = Residuals()
    for _ in range(10):
        residuals.observe(1000)
    for _ in range(KEPT):
        residuals.observe(10)
    assert residuals.median(100) == 0.0


def test_names() -> None:
    options = ReshapingOptions(PROFILE, lambda degree: 64, lambda: None, lambda: None)
    for name in RESHAPERS:
        assert make_reshaper(name, options).name == name
    with pytest.raises(ConfigError, match="choose one of none, tail"):
        make_reshaper("elastic", options)
    with pytest.raises(ConfigError, match="needs a profile"):
        make_reshaper("tail", ReshapingOptions(None, lambda degree: 64, lambda: None, lambda: None))
