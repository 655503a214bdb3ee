"""Moves: accepted or refused with a reason, transferred one per worker, and given up without a trace."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import pytest
from control_rig import Rig, generated
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.control.commands import CancelTransfer, Command, Transfer
from heddle.control.events import (
    BatchCancelled,
    TransferFailed,
    TransferFinished,
    WorkerDrainRequested,
)
from heddle.control.ports import MigrationProposal, MoveMeans
from heddle.control.state import IgnoreReason
from heddle.control.transfers import MoveOutcome, MoveRefusal
from heddle.planning.transfer_rate import TransferRate
from heddle.types import (
    BatchId,
    StopReason,
    TrajectoryId,
    TrajectoryPhase,
    TrajectoryView,
    WorkerId,
    WorkerView,
)
from moving_planner import Spontaneous


class Planned(Spontaneous):
    """Proposes to move each trajectory as the test says: name to target and urgency."""

    name = "planned"

    def __init__(self, means: MoveMeans = MoveMeans.TRANSFER, **targets: tuple[str, float]) -> None:
        self.means = means
        self.targets = targets

    def propose(
        self, in_tool: Sequence[TrajectoryView], workers: Sequence[WorkerView], now: float
    ) -> Iterable[MigrationProposal]:
        for trajectory in in_tool:
            if trajectory.trajectory_id in self.targets and trajectory.worker_id is not None:
                target, urgency = self.targets[trajectory.trajectory_id]
                yield MigrationProposal(
                    trajectory.trajectory_id, trajectory.worker_id, WorkerId(target), self.means, urgency
                )


class ToTheLast(Spontaneous):
    """Proposes to move everything to the last worker, and once what cannot be."""

    name = "to_the_last"

    def propose(
        self, in_tool: Sequence[TrajectoryView], workers: Sequence[WorkerView], now: float
    ) -> Iterable[MigrationProposal]:
        target = workers[-1].worker_id
        yield MigrationProposal(TrajectoryId("nobody"), WorkerId("w0"), target)
        for trajectory in in_tool:
            assert trajectory.worker_id is not None
            yield MigrationProposal(trajectory.trajectory_id, WorkerId("elsewhere"), target)
            yield MigrationProposal(trajectory.trajectory_id, trajectory.worker_id, WorkerId("nowhere"))
            yield MigrationProposal(trajectory.trajectory_id, trajectory.worker_id, target)


def make_rig(planner: Planned, *, workers: int = 2, size: int = 2) -> Rig:
    """``a0`` lives on ``w0``, ``a1`` on ``w1`` and so on; each has generated its first step."""
    rig = Rig(migration=planner)
    rig.pool(workers)
    rig.submit("a", size)
    for index in range(size):
        rig.step(f"a{index}")
    return rig


def transfers(commands: Sequence[Command]) -> list[tuple[str, str, str]]:
    """Trajectory, source and target of every ``Transfer``."""
    return [(c.trajectory_id, c.source, c.target) for c in commands if isinstance(c, Transfer)]


def broken_off(commands: Sequence[Command]) -> list[str]:
    """Trajectory of every ``CancelTransfer``."""
    return [c.trajectory_id for c in commands if isinstance(c, CancelTransfer)]


def test_a_transfer_that_is_done_in_time_changes_the_home() -> None:
    """The trajectory lives at the source until then; its context counts at the target afterwards."""
    rig = make_rig(Planned(a0=("w1", 5.0)))

    ordered = rig.tools_started("a0")

    assert ordered == [Transfer(TrajectoryId("a0"), WorkerId("w0"), WorkerId("w1"), 110, 30.0)]
    assert rig.homes() == {"w0": 1, "w1": 1}
    assert "is being copied to w1" in rig.plane.explain(TrajectoryId("a0"), rig.now).reason
    rig.transferred("a0")
    assert rig.homes() == {"w0": 0, "w1": 2}
    assert rig.trajectory("a0").warm
    assert generated(rig.tools_finished("a0")) == [("a0", "w1")]
    assert rig.plane.gauges().moves_total == {MoveOutcome.MOVED: 1}


def test_if_the_tools_return_first_the_trajectory_goes_on_where_it_is() -> None:
    """At once; the answer that comes later moves nobody."""
    rig = make_rig(Planned(a0=("w1", 5.0)))
    rig.tools_started("a0")

    commands = rig.tools_finished("a0")

    assert broken_off(commands) == ["a0"]
    assert generated(commands) == [("a0", "w0")]
    assert rig.plane.gauges().transfers_under_way == 1
    rig.transferred("a0")
    assert rig.homes() == {"w0": 1, "w1": 1}
    gauges = rig.plane.gauges()
    assert (gauges.transfers_under_way, gauges.moves_total) == (0, {MoveOutcome.WITHDRAWN: 1})


def test_after_a_failed_transfer_the_trajectory_goes_on_where_it_is() -> None:
    """And its two workers are free for others."""
    rig = make_rig(Planned(a0=("w1", 5.0), a1=("w0", 1.0)))
    rig.tools_started("a0")
    assert transfers(rig.tools_started("a1")) == []

    assert transfers(rig.transfer_failed("a0")) == [("a1", "w1", "w0")]

    assert generated(rig.tools_finished("a0")) == [("a0", "w0")]
    assert rig.plane.gauges().moves_total == {MoveOutcome.FAILED: 1}


def test_transfers_tell_how_fast_contexts_travel() -> None:
    """From the order to the answer, on the plane's own clock; a wait in the line does not count."""
    rate = TransferRate(1e6)
    rig = Rig(migration=Planned(a0=("w1", 5.0), a1=("w0", 1.0)), transfer_rate=rate)
    rig.pool(2)
    rig.submit("a", 2)
    rig.step("a0")
    rig.step("a1")
    rig.tools_started("a0")
    rig.tools_started("a1")
    rig.now += 9.0
    rig.transferred("a0")
    assert rate.tokens_per_s() == pytest.approx((0.9 * 4096 + 110) / (0.9 * 4096 / 1e6 + 11.0))
    before = rate.tokens_per_s()
    rig.now += 3.0
    rig.transfer_failed("a1")
    assert rate.tokens_per_s() != before
    assert rate is rig.plane.transfer_rate


def test_a_migration_planner_moves_a_trajectory_while_its_tool_runs() -> None:
    """Possible proposals are accepted, impossible ones refused."""
    rig = Rig(migration=ToTheLast())
    rig.pool(2)
    rig.submit("a", 1)
    rig.step("a0")

    rig.tools_started("a0")

    assert rig.homes() == {"w0": 0, "w1": 1}
    assert generated(rig.tools_finished("a0")) == [("a0", "w1")]


def test_of_those_that_wait_for_a_worker_the_most_urgent_goes_first() -> None:
    """Whoever shares no worker with what runs does not wait at all."""
    planner = Planned(a0=("w3", 1.0), a1=("w3", 2.0), a2=("w3", 9.0), a4=("w5", 0.0))
    rig = make_rig(planner, workers=6, size=6)

    assert transfers(rig.tools_started("a0")) == [("a0", "w0", "w3")]
    assert transfers(rig.tools_started("a1") + rig.tools_started("a2")) == []
    assert transfers(rig.tools_started("a4")) == [("a4", "w4", "w5")]
    assert rig.plane.gauges().transfers_waiting == 2
    assert "in its turn" in rig.plane.explain(TrajectoryId("a1"), rig.now).reason
    assert transfers(rig.transferred("a0")) == [("a2", "w2", "w3")]
    assert transfers(rig.transferred("a2")) == [("a1", "w1", "w3")]


def test_a_move_that_waits_is_given_up_silently() -> None:
    """Nobody began to copy, so there is nothing to break off."""
    rig = make_rig(Planned(a0=("w1", 5.0), a1=("w0", 1.0)))
    rig.tools_started("a0")
    rig.tools_started("a1")

    assert broken_off(rig.tools_finished("a1")) == []

    assert transfers(rig.transferred("a0")) == []
    assert rig.homes() == {"w0": 0, "w1": 2}


@pytest.mark.parametrize("worker", ["w0", "w1"])
@pytest.mark.parametrize("drained", [False, True])
def test_a_worker_that_goes_takes_its_transfers_with_it(worker: str, drained: bool) -> None:
    """Source or target, lost or drained: broken off at once, and the trajectory goes on where there is a
    worker."""
    rig = make_rig(Planned(a0=("w1", 5.0)), workers=3)
    rig.tools_started("a0")

    commands = rig.send(WorkerDrainRequested(WorkerId(worker))) if drained else rig.lost(worker)

    assert broken_off(commands) == ["a0"]
    rig.transferred("a0")
    expected = "w2" if worker == "w0" else "w0"
    assert generated(rig.tools_finished("a0")) == [("a0", expected)]


def test_a_trajectory_that_ends_breaks_its_transfer_off_once() -> None:
    """By its own end or by a cancellation; its workers are taken until the answer."""
    for cancelled in (False, True):
        rig = make_rig(Planned(a0=("w1", 5.0)))
        rig.tools_started("a0")
        if cancelled:
            commands = rig.send(BatchCancelled(BatchId("a"), StopReason.CANCELLED))
            assert broken_off(commands) == ["a0"]
            assert broken_off(rig.finish("a0", StopReason.CANCELLED)) == []
        else:
            assert broken_off(rig.finish("a0")) == ["a0"]
        assert rig.plane.gauges().transfers_under_way == 1
        rig.transfer_failed("a0")
        assert rig.plane.gauges().transfers_under_way == 0


def test_answers_that_fit_no_transfer_are_ignored() -> None:
    """Twice, of another worker, or of a move that waits."""
    rig = make_rig(Planned(a0=("w1", 5.0), a1=("w0", 1.0)))
    rig.tools_started("a0")
    rig.tools_started("a1")
    a0, a1, w0, w1 = TrajectoryId("a0"), TrajectoryId("a1"), WorkerId("w0"), WorkerId("w1")

    for event in (
        TransferFinished(a0, w1, w0, 1),
        TransferFailed(a1, w1, w0, "too early"),
        TransferFinished(TrajectoryId("nobody"), w0, w1, 1),
    ):
        rig.send(event)
        assert rig.plane.last_ignored is IgnoreReason.NO_TRANSFER
    rig.transferred("a0")
    rig.send(TransferFinished(a0, w0, w1, 1))
    assert rig.plane.last_ignored is IgnoreReason.NO_TRANSFER


def test_a_second_move_waits_for_the_answer_to_the_first() -> None:
    """What was broken off may still be copying."""
    rig = make_rig(Planned(a0=("w1", 5.0)))
    rig.tools_started("a0")
    rig.tools_finished("a0")
    rig.step("a0")

    assert transfers(rig.tools_started("a0")) == []

    assert rig.plane.gauges().moves_refused_total == {MoveRefusal.MOVING: 1}
    assert "an earlier transfer" in rig.plane.explain(TrajectoryId("a0"), rig.now).reason


def test_a_target_without_room_is_refused() -> None:
    """What it holds, what it expects and the newcomer must stay below its limit."""
    rig = Rig(migration=Planned(a0=("w2", 1.0), a1=("w2", 1.0)))
    rig.pool(3, kv_capacity_tokens=300)
    rig.submit("a", 3)
    rig.step("a0")
    rig.step("a1")

    assert transfers(rig.tools_started("a0")) == [("a0", "w0", "w2")]
    assert transfers(rig.tools_started("a1")) == []

    assert rig.plane.gauges().moves_refused_total == {MoveRefusal.NO_MEMORY: 1}
    reason = rig.plane.explain(TrajectoryId("a1"), rig.now).reason
    assert reason.endswith("a move of it was refused: the target lacked memory for its context")


def test_by_recomputation_the_home_changes_at_once() -> None:
    """Nothing is copied, and the new home has nothing of it yet."""
    rig = make_rig(Planned(MoveMeans.RECOMPUTE, a0=("w1", 5.0)))

    assert transfers(rig.tools_started("a0")) == []

    assert rig.homes() == {"w0": 0, "w1": 2}
    assert not rig.trajectory("a0").warm


class Restless(Spontaneous):
    """Proposes to move everybody to any worker but its own."""

    name = "restless"

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def propose(
        self, in_tool: Sequence[TrajectoryView], workers: Sequence[WorkerView], now: float
    ) -> Iterable[MigrationProposal]:
        for trajectory in in_tool:
            others = [w.worker_id for w in workers if w.worker_id != trajectory.worker_id]
            if others and trajectory.worker_id is not None:
                means = self._rng.choice([MoveMeans.TRANSFER, MoveMeans.TRANSFER, MoveMeans.RECOMPUTE])
                yield MigrationProposal(
                    trajectory.trajectory_id,
                    trajectory.worker_id,
                    self._rng.choice(others),
                    means,
                    self._rng.random(),
                )


def live_on(rig: Rig, name: str, rng: random.Random) -> None:
    """The next thing that may happen to a trajectory."""
    match rig.trajectory(name).phase:
        case TrajectoryPhase.GENERATING if rng.random() < 0.1:
            rig.interrupt(name)
        case TrajectoryPhase.GENERATING:
            rig.step(name, output=rng.randrange(1, 30))
        case TrajectoryPhase.BETWEEN if rng.random() < 0.1:
            rig.finish(name)
        case TrajectoryPhase.BETWEEN:
            rig.tools_started(name)
        case TrajectoryPhase.IN_TOOL:
            rig.tools_finished(name)
        case _:
            pass


@settings(max_examples=60)
@given(st.integers(0, 1 << 32), st.sampled_from([None, 600, 2000]), st.integers(1, 3))
def test_whatever_moves_and_fails_every_trajectory_comes_to_its_end(
    seed: int, capacity: int | None, slots: int
) -> None:
    """Transfers done, failed and late, workers that die and come back; the invariants hold after each event.

    At the end nothing is held: no transfer, no memory, no slot.
    """
    rng = random.Random(seed)
    rig = Rig(slots=slots, migration=Restless(rng))
    rig.pool(4, kv_capacity_tokens=capacity)
    rig.submit("a", 10)
    down: set[str] = set()
    while rig.plane.state.trajectories:
        chance = rng.random()
        if chance < 0.02 and len(down) < 3:
            worker = rng.choice([f"w{i}" for i in range(4) if f"w{i}" not in down])
            down.add(worker)
            for name in list(rig.plane.state.workers[WorkerId(worker)].generating):
                rig.interrupt(name)
            rig.lost(worker)
        elif chance < 0.06 and down:
            rig.ready(down.pop(), kv_capacity_tokens=capacity)
        elif chance < 0.3 and rig.transfers:
            name = rng.choice(list(rig.transfers))
            answer = rig.transfer_failed if rng.random() < 0.3 else rig.transferred
            answer(name)
        else:
            live_on(rig, rng.choice(list(rig.plane.state.trajectories)), rng)
    for name in list(rig.transfers):
        rig.transfer_failed(name)
    state = rig.plane.state
    assert (state.transfers.under_way, state.transfers.waiting) == (0, 0)
    assert [(w.transfers, w.kv_tokens, w.running) for w in state.workers.values()] == [(0, 0, 0)] * 4
