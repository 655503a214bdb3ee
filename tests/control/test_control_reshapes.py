"""Reshapes: idle workers give way to a larger one, who is bound for it moves, and the pool grows back."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import pytest
from control_rig import START_S, Rig, generated, make_batch, make_spec, preempted

from heddle.control.commands import Command, StartWorker, StopWorker
from heddle.control.events import (
    BatchSubmitted,
    DispatchPaused,
    WeightsCommitted,
    WorkerAdded,
    WorkerDrainRequested,
    WorkerStopped,
)
from heddle.control.ports import Reshape
from heddle.control.reshapes import LONG_STEP_S
from heddle.control.shape import ReshapeOutcome
from heddle.types import (
    BatchId,
    InterruptReason,
    TrajectoryId,
    TrajectoryPhase,
    TrajectoryView,
    WorkerId,
    WorkerSpec,
    WorkerView,
)


class Scripted:
    """Turns the workers without residents into one as soon as there are ``idle``; all are to move there."""

    name = "scripted"

    def __init__(self, idle: int = 2) -> None:
        self.idle = idle
        self.starts: list[float] = []
        self.finished: list[str] = []

    def propose(self, workers: Sequence[WorkerView], start_s: float) -> Reshape | None:
        self.starts.append(start_s)
        drain = tuple(worker.worker_id for worker in workers if not worker.resident)
        if len(drain) < self.idle or len(drain) == len(workers):
            return None
        degrees = sum(worker.tp_degree for worker in workers if worker.worker_id in drain)
        return Reshape(drain, (degrees,), 10.0)

    def assign(
        self, workers: Sequence[WorkerView], fresh: Collection[WorkerId]
    ) -> Mapping[TrajectoryId, WorkerId]:
        target = next(iter(fresh))
        return {name: target for worker in workers if worker.worker_id != target for name in worker.residents}

    def observe_finished(self, trajectory: TrajectoryView) -> None:
        self.finished.append(trajectory.trajectory_id)


def make_rig(reshaper: Scripted | None = None) -> Rig:
    """``a0``, ``a1`` and ``a2`` generate on workers of degree 1, one each; nobody has finished."""
    rig = Rig(reshaper=reshaper or Scripted())
    rig.pool(3)
    rig.submit("a", 3)
    return rig


def make_reshaped(reshaper: Scripted | None = None) -> Rig:
    """``a0`` is left on ``w0``; the GPUs of ``w1`` and ``w2`` have become ``w3``, which starts."""
    rig = make_rig(reshaper)
    rig.finish("a1")
    rig.finish("a2")
    rig.send(WorkerStopped(WorkerId("w1")))
    rig.send(WorkerStopped(WorkerId("w2")))
    return rig


def started(commands: Sequence[Command]) -> list[tuple[str, int]]:
    """Id and degree of every ``StartWorker``."""
    return [(c.spec.worker_id, c.spec.tp_degree) for c in commands if isinstance(c, StartWorker)]


def stopped(commands: Sequence[Command]) -> list[str]:
    """Worker of every ``StopWorker``."""
    return [c.worker_id for c in commands if isinstance(c, StopWorker)]


def outcomes(rig: Rig) -> dict[str, int]:
    return {outcome.value: number for outcome, number in rig.plane.state.shape.outcomes.items()}


def test_idle_workers_give_way_while_the_last_one_goes_on() -> None:
    rig = make_rig()
    assert rig.finish("a1") == []
    commands = rig.finish("a2")
    assert stopped(commands) == ["w1", "w2"]
    assert started(commands) == [("w3", 2)]
    assert rig.trajectory("a0").phase is TrajectoryPhase.GENERATING
    assert outcomes(rig) == {"ordered": 1}


def test_who_is_bound_moves_when_its_tools_start() -> None:
    rig = make_reshaped()
    rig.ready("w3")
    assert rig.trajectory("a0").bound_for == "w3"
    rig.step("a0")
    rig.tools_started("a0")
    assert rig.trajectory("a0").worker_id == "w3"
    assert rig.trajectory("a0").bound_for is None
    assert generated(rig.tools_finished("a0")) == [("a0", "w3")]


def test_who_is_in_its_tools_moves_at_once() -> None:
    rig = make_reshaped()
    rig.step("a0")
    rig.tools_started("a0")
    rig.ready("w3")
    assert rig.trajectory("a0").worker_id == "w3"


def test_who_has_no_tools_moves_before_its_next_step() -> None:
    rig = make_reshaped()
    rig.ready("w3")
    rig.step("a0")
    assert generated(rig.tools_finished("a0")) == [("a0", "w3")]
    assert rig.trajectory("a0").moves == 1


def test_who_generates_for_long_is_interrupted_and_goes_on_there() -> None:
    rig = make_reshaped()
    rig.now += LONG_STEP_S
    assert preempted(rig.ready("w3")) == ["a0"]
    assert generated(rig.interrupt("a0", reason=InterruptReason.PREEMPTED)) == [("a0", "w3")]


def test_who_has_just_begun_to_generate_is_left_to_it() -> None:
    rig = make_reshaped()
    rig.step("a0")
    rig.tools_finished("a0")
    assert preempted(rig.ready("w3")) == []


def test_who_cannot_be_interrupted_moves_after_its_step() -> None:
    rig = Rig(reshaper=Scripted())
    rig.pool(3)
    rig.send(BatchSubmitted(BatchId("a"), tuple(make_spec(f"a{i}", preemptible=False) for i in range(3))))
    rig.finish("a1")
    rig.finish("a2")
    rig.now += LONG_STEP_S
    assert preempted(rig.ready("w3")) == []
    assert rig.trajectory("a0").bound_for == "w3"


def test_who_does_not_fit_stays_bound() -> None:
    rig = make_reshaped()
    rig.ready("w3", kv_capacity_tokens=50)
    rig.step("a0")
    assert generated(rig.tools_finished("a0")) == [("a0", "w0")]
    assert rig.trajectory("a0").bound_for == "w3"


def test_a_bound_trajectory_may_end_before_it_has_moved() -> None:
    rig = make_reshaped()
    rig.ready("w3")
    rig.finish("a0")
    assert not rig.plane.state.trajectories


@pytest.mark.parametrize("will_restart", [True, False])
def test_a_worker_that_does_not_come_up_brings_the_pool_back(will_restart: bool) -> None:
    rig = make_reshaped()
    commands = rig.lost("w3", will_restart=will_restart)
    assert started(commands) == [("w4", 1), ("w5", 1)]
    assert stopped(commands) == ["w3"]
    if will_restart:  # of one that was given up nobody is left to report the stop
        rig.send(WorkerStopped(WorkerId("w3")))
    rig.ready("w4")
    rig.ready("w5")
    assert set(rig.plane.state.workers) == {"w0", "w4", "w5"}
    assert outcomes(rig) == {"ordered": 1, "failed": 1, "restored": 1}


def test_after_a_failed_start_the_batch_is_left_in_peace() -> None:
    reshaper = Scripted()
    rig = Rig(reshaper=reshaper)
    rig.pool(4)
    rig.submit("a", 4)
    rig.finish("a2")
    rig.finish("a3")
    rig.send(WorkerStopped(WorkerId("w2")))
    rig.send(WorkerStopped(WorkerId("w3")))
    rig.lost("w4")
    rig.send(WorkerStopped(WorkerId("w4")))
    rig.ready("w5")
    rig.ready("w6")
    looks = len(reshaper.starts)
    assert started(rig.finish("a1")) == []
    assert len(reshaper.starts) == looks


def test_a_reshaped_worker_that_crashes_later_is_waited_for() -> None:
    rig = make_reshaped()
    rig.ready("w3")
    commands = rig.lost("w3")
    assert started(commands) == []
    assert rig.trajectory("a0").bound_for is None
    rig.ready("w3")
    assert rig.trajectory("a0").bound_for == "w3"


def test_the_pool_grows_back_when_nothing_is_open() -> None:
    rig = make_reshaped()
    rig.ready("w3")
    commands = rig.finish("a0")
    assert started(commands) == [("w4", 1), ("w5", 1)]
    assert stopped(commands) == ["w3"]
    assert outcomes(rig) == {"ordered": 1, "done": 1, "restored": 1}


def test_the_pool_grows_back_for_another_batch() -> None:
    rig = make_reshaped()
    rig.ready("w3")
    rig.step("a0")
    rig.tools_started("a0")
    assert rig.trajectory("a0").worker_id == "w3"
    commands = rig.submit("b", 2)
    assert started(commands) == [("w4", 1), ("w5", 1)]
    assert stopped(commands) == ["w3"]
    assert {worker for _, worker in generated(commands)} == {"w0"}


def test_another_batch_while_the_new_worker_starts_stops_it() -> None:
    rig = make_reshaped()
    commands = rig.submit("b", 1)
    assert started(commands) == [("w4", 1), ("w5", 1)]
    assert stopped(commands) == ["w3"]


def test_nothing_is_reshaped_while_two_batches_are_open() -> None:
    reshaper = Scripted()
    rig = make_rig(reshaper)
    rig.submit("b", 1)
    rig.finish("a1")
    rig.finish("a2")
    assert reshaper.starts == []


def test_nothing_is_reshaped_while_dispatch_is_paused() -> None:
    reshaper = Scripted()
    rig = make_rig(reshaper)
    rig.send(DispatchPaused())
    rig.finish("a1")
    assert reshaper.starts == []


def test_nothing_is_reshaped_where_a_new_worker_could_not_load_the_weights() -> None:
    reshaper = Scripted()
    rig = make_rig(reshaper)
    rig.send(WeightsCommitted(reloadable=False))
    rig.finish("a1")
    assert reshaper.starts == []
    rig.send(WeightsCommitted(reloadable=True))
    assert started(rig.finish("a2")) == [("w3", 2)]


@pytest.mark.parametrize(
    "event",
    [WorkerDrainRequested(WorkerId("w3")), WorkerAdded(WorkerSpec(WorkerId("w9"), 1, 2))],
    ids=["drain", "add"],
)
def test_a_pool_that_an_operator_shapes_stays_so(event: WorkerDrainRequested | WorkerAdded) -> None:
    rig = make_reshaped()
    rig.ready("w3")
    rig.send(event)
    assert rig.trajectory("a0").bound_for is None
    assert started(rig.finish("a0")) == []


def test_looks_are_few() -> None:
    """Of a thousand endings some tens are looked at."""
    reshaper = Scripted(idle=9)
    rig = Rig(reshaper=reshaper, slots=500)
    rig.pool(2)
    rig.submit("a", 1000)
    for index in range(999):
        rig.plane.handle(make_batch("x", 0), rig.now)  # changes nothing
        rig.finish(f"a{index}")
    assert len(reshaper.starts) < 60
    assert len(reshaper.finished) == 999


def test_the_start_that_was_measured_is_expected_from_then_on() -> None:
    reshaper = Scripted()
    rig = make_reshaped(reshaper)
    ordered_at = rig.now - 2  # two workers have stopped since
    rig.ready("w3")
    took = rig.now - ordered_at
    rig.finish("a0")
    for worker in ("w4", "w5"):
        rig.ready(worker)
    rig.send(WorkerStopped(WorkerId("w3")))
    rig.submit("b", 3)
    rig.finish("b0")
    assert reshaper.starts[0] == START_S
    assert reshaper.starts[-1] == took
    assert rig.plane.state.shape.outcomes[ReshapeOutcome.DONE] == 1
