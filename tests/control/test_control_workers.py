"""Workers: they come, crash, drain and go, and no trajectory is lost."""

from __future__ import annotations

import pytest
from control_rig import Rig, cancelled, generated

from heddle.control.commands import Cancel, Generate, StartWorker, StopWorker
from heddle.control.events import (
    Event,
    PoolRequested,
    WorkerAdded,
    WorkerDrainRequested,
    WorkerLost,
    WorkerReady,
    WorkerStopped,
)
from heddle.control.state import IgnoreReason
from heddle.errors import ConfigError
from heddle.types import (
    StopReason,
    TrajectoryId,
    TrajectoryPhase,
    TrajectoryView,
    WorkerId,
    WorkerPhase,
    WorkerSpec,
)


def make_worker(name: str, *, slots: int = 2) -> WorkerAdded:
    return WorkerAdded(WorkerSpec(WorkerId(name), 1, slots))


def drain(rig: Rig, worker: str) -> list[object]:
    return list(rig.send(WorkerDrainRequested(WorkerId(worker))))


def test_a_pool_starts_the_workers_that_the_budget_is_made_into() -> None:
    """One StartWorker per worker of the allocation."""
    rig = Rig(slots=3)

    commands = rig.send(PoolRequested(2))

    assert commands == [StartWorker(WorkerSpec(WorkerId(f"w{i}"), 1, 3)) for i in range(2)]
    assert [worker.phase for worker in rig.plane.worker_views()] == [WorkerPhase.STARTING] * 2


def test_a_pool_that_does_not_fit_is_refused_and_changes_nothing() -> None:
    """The allocator's ConfigError comes out, and no worker is registered."""
    rig = Rig(pool="2+2")

    with pytest.raises(ConfigError, match="pool 2\\+2 needs 4 units but there are 2"):
        rig.send(PoolRequested(2))
    assert rig.plane.worker_views() == ()


def test_two_hundred_trajectories_spread_evenly_over_four_idle_workers() -> None:
    """Equal workers fill evenly, whether they were ready before the batch or came one by one."""
    early = Rig(slots=4)
    early.pool(4)
    early.submit("a", 200)
    late = Rig(slots=4)
    late.submit("a", 200)
    late.pool(4)

    expected = {f"w{i}": 50 for i in range(4)}
    assert early.homes() == expected
    assert late.homes() == expected


def test_what_waits_unplaced_is_served_in_order_when_a_worker_comes() -> None:
    """Without a ready worker trajectories wait in the pool; the first worker gets them in order."""
    rig = Rig(slots=2)
    rig.send(PoolRequested(1))
    assert rig.submit("a", 3) == []
    assert rig.plane.gauges().unplaced == 3

    commands = rig.ready("w0")

    assert generated(commands) == [("a0", "w0"), ("a1", "w0")]


def test_an_added_worker_gets_its_share_of_what_has_nothing_to_lose() -> None:
    """Waiting trajectories that were never computed move; those with a prefix at home stay."""
    rig = Rig(slots=1)
    rig.pool(1)
    rig.submit("a", 6)
    rig.step("a0")
    rig.tools_finished("a0")  # waits at w0, where its prefix is cached
    rig.send(make_worker("w9", slots=1))

    commands = rig.ready("w9")

    assert generated(commands) == [("a2", "w9")]
    assert rig.trajectory("a0").worker_id == "w0"
    assert rig.homes() == {"w0": 3, "w9": 3}


def test_interruptions_after_the_loss_go_elsewhere() -> None:
    """A crash: the queue moves at once, running generations when their interruptions arrive."""
    rig = Rig(slots=2)
    rig.pool(2)
    rig.submit("a", 6)  # w0: a0 a2 a4, w1: a1 a3 a5

    assert rig.lost("w0") == []
    assert rig.plane.queue(WorkerId("w1"), 10) == ("a4", "a5")
    assert rig.trajectory("a0").phase is TrajectoryPhase.GENERATING
    rig.interrupt("a0")
    rig.interrupt("a2")

    assert rig.plane.queue(WorkerId("w1"), 10) == ("a0", "a2", "a4", "a5")
    assert rig.homes() == {"w0": 0, "w1": 6}


def test_an_interrupted_trajectory_takes_a_free_slot_elsewhere_at_once() -> None:
    """It does not wait for some other event to wake its new home."""
    rig = Rig(slots=2)
    rig.pool(2)
    rig.submit("a", 2)
    rig.lost("w0")

    assert generated(rig.interrupt("a0")) == [("a0", "w1")]


def test_interruptions_before_the_loss_are_served_again_where_they_are() -> None:
    """An interruption that overtakes the loss may start once more on the dying worker, and comes back."""
    rig = Rig(slots=1)
    rig.pool(2)
    rig.submit("a", 2)

    assert generated(rig.interrupt("a0")) == [("a0", "w0")]
    rig.lost("w0")
    assert rig.interrupt("a0") == []
    assert generated(rig.step("a1")) == [("a0", "w1")]


def test_trajectories_in_tools_lose_their_home_with_the_worker() -> None:
    """After its tools such a trajectory is placed anew."""
    rig = Rig(slots=1)
    rig.pool(2)
    rig.submit("a", 2)
    rig.step("a0")
    rig.tools_started("a0")
    rig.step("a1")

    rig.lost("w0")

    assert rig.trajectory("a0").worker_id is None
    assert generated(rig.tools_finished("a0")) == [("a0", "w1")]


def test_a_returning_worker_gets_its_share_again() -> None:
    """After a restart what waits cold elsewhere is spread over both workers."""
    rig = Rig(slots=1)
    rig.pool(2)
    rig.submit("a", 8)
    rig.lost("w0")
    rig.interrupt("a0")
    assert rig.homes() == {"w0": 0, "w1": 8}

    commands = rig.ready("w0")

    assert generated(commands) == [("a0", "w0")]
    assert rig.homes() == {"w0": 4, "w1": 4}


def test_a_worker_that_returns_smaller_sees_out_its_late_interruptions() -> None:
    """Generations of the former life hold their slots until they are reported; nothing starts above."""
    rig = Rig(slots=3)
    rig.pool(1)
    rig.submit("a", 4)
    rig.lost("w0")

    assert rig.ready("w0", slots=1) == []
    assert rig.interrupt("a0") == []
    assert rig.interrupt("a1") == []
    assert rig.plane.state.workers[WorkerId("w0")].excess == 0
    assert generated(rig.interrupt("a2")) == [("a0", "w0")]


def test_when_the_last_worker_is_lost_for_good_everything_open_is_ended() -> None:
    """No worker can ever come: each open trajectory is ended as engine_failed, once."""
    rig = Rig(slots=1)
    rig.pool(2)
    rig.submit("a", 3)
    assert cancelled(rig.lost("w0", will_restart=False)) == []

    commands = rig.lost("w1", will_restart=False)

    detail = "worker w1 is lost for good (killed) and no other is left"
    assert commands == [Cancel(TrajectoryId(f"a{i}"), StopReason.ENGINE_FAILED, detail) for i in range(3)]
    assert rig.lost("w1", will_restart=False) == []
    assert rig.interrupt("a0") == []


def test_while_a_worker_may_come_back_nothing_is_ended() -> None:
    """A crashed worker that restarts is reason enough to wait."""
    rig = Rig(slots=1)
    rig.pool(2)
    rig.submit("a", 2)

    assert rig.lost("w0", will_restart=True) == []
    assert cancelled(rig.lost("w1", will_restart=False)) == []


def test_a_batch_that_no_worker_can_serve_is_ended_at_once() -> None:
    """Submitting to a pool that is lost for good gives the orders to end."""
    rig = Rig()
    rig.pool(1)
    rig.lost("w0", will_restart=False)

    commands = rig.submit("a", 2)

    assert cancelled(commands) == ["a0", "a1"]
    assert rig.plane.explain(TrajectoryId("a0"), rig.now).reason == (
        "it was ordered to end (engine_failed) and is winding up"
    )


def test_a_batch_before_the_pool_waits() -> None:
    """A pool that was never asked for is not a lost one."""
    rig = Rig()

    assert rig.submit("a", 1) == []
    rig.send(PoolRequested(1))
    assert generated(rig.ready("w0")) == [("a0", "w0")]


def test_a_drained_worker_finishes_what_runs_and_stops() -> None:
    """Its queue goes elsewhere at once; it is stopped after its last generation and then forgotten."""
    rig = Rig(slots=1)
    rig.pool(2)
    rig.submit("a", 4)  # w0: a0 a2, w1: a1 a3

    assert drain(rig, "w0") == []
    assert rig.plane.queue(WorkerId("w1"), 10) == ("a2", "a3")
    assert rig.step("a0") == [StopWorker(WorkerId("w0"))]
    assert rig.trajectory("a0").worker_id is None
    rig.send(WorkerStopped(WorkerId("w0")))
    assert [worker.worker_id for worker in rig.plane.worker_views()] == ["w1"]
    rig.tools_finished("a0")
    assert rig.homes() == {"w1": 4}


def test_draining_the_last_worker_leaves_trajectories_waiting() -> None:
    """An operator may add another worker, so nothing is ended."""
    rig = Rig(slots=1)
    rig.pool(1)
    rig.submit("a", 2)

    assert drain(rig, "w0") == []
    assert rig.finish("a0") == [StopWorker(WorkerId("w0"))]
    rig.send(WorkerStopped(WorkerId("w0")))
    assert rig.plane.gauges().unplaced == 1
    rig.send(make_worker("w1"))
    assert generated(rig.ready("w1")) == [("a1", "w1")]


def test_an_idle_worker_is_stopped_as_soon_as_it_is_drained() -> None:
    """Idle, still starting, or down: there is nothing to wait for."""
    rig = Rig()
    rig.pool(2)
    rig.lost("w1")
    rig.send(make_worker("w2"))

    assert [drain(rig, f"w{i}") for i in range(3)] == [[StopWorker(WorkerId(f"w{i}"))] for i in range(3)]


def test_a_worker_that_dies_while_it_drains_is_stopped_after_its_interruptions() -> None:
    """Draining outlives a crash: the worker must not come back."""
    rig = Rig(slots=1)
    rig.pool(2)
    rig.submit("a", 2)
    drain(rig, "w0")

    assert rig.lost("w0") == []
    assert rig.interrupt("a0") == [StopWorker(WorkerId("w0"))]
    rig.send(WorkerReady(WorkerId("w0"), 1, None))
    assert rig.plane.last_ignored is IgnoreReason.WRONG_PHASE


def test_a_worker_that_was_given_up_is_forgotten_when_it_is_drained() -> None:
    """Nobody is left to report it as stopped, so that the order to stop is the last of it."""
    rig = Rig(slots=1)
    rig.pool(3)
    rig.submit("a", 3)
    rig.lost("w0", will_restart=False)
    drain(rig, "w1")

    assert drain(rig, "w0") == []
    assert rig.interrupt("a0") == [StopWorker(WorkerId("w0"))]
    assert rig.lost("w1", will_restart=False) == []
    assert rig.interrupt("a1") == [StopWorker(WorkerId("w1"))]
    assert [worker.worker_id for worker in rig.plane.worker_views()] == ["w2"]
    assert rig.send(WorkerStopped(WorkerId("w0"))) == []


def test_worker_events_that_do_not_fit_are_ignored() -> None:
    """Unknown workers, second starts, and stops that nobody ordered change nothing."""
    rig = Rig()
    rig.pool(1)
    w0, nobody = WorkerId("w0"), WorkerId("nobody")
    misfits: list[tuple[Event, IgnoreReason]] = [
        (WorkerReady(nobody, 1, None), IgnoreReason.UNKNOWN_WORKER),
        (WorkerLost(nobody, "", True), IgnoreReason.UNKNOWN_WORKER),
        (WorkerDrainRequested(nobody), IgnoreReason.UNKNOWN_WORKER),
        (WorkerStopped(nobody), IgnoreReason.UNKNOWN_WORKER),
        (WorkerStopped(w0), IgnoreReason.WRONG_PHASE),
        (WorkerReady(w0, 1, None), IgnoreReason.WRONG_PHASE),
        (make_worker("w0"), IgnoreReason.DUPLICATE_WORKER),
        (PoolRequested(1), IgnoreReason.DUPLICATE_WORKER),
    ]

    for event, reason in misfits:
        assert (rig.send(event), rig.plane.last_ignored) == ([], reason)


def test_a_worker_without_slots_is_not_used() -> None:
    """A worker that offers no slot stays out of service, and everything waits."""
    rig = Rig()
    rig.send(PoolRequested(1))
    rig.submit("a", 1)

    rig.send(WorkerReady(WorkerId("w0"), 0, None))

    assert rig.plane.last_ignored is IgnoreReason.NO_SLOTS
    assert rig.plane.gauges().unplaced == 1


def test_unused_worker_ids_are_new() -> None:
    """The id of a worker that is gone is not given again, and taken ids are passed over."""
    rig = Rig()
    rig.pool(2)
    drain(rig, "w0")
    rig.send(WorkerStopped(WorkerId("w0")))
    assert rig.plane.unused_worker_id() == "w2"
    rig.send(make_worker("w3"))
    assert rig.plane.unused_worker_id() == "w4"


class LongestContext:
    """A scheduler that knows better than arrival."""

    name = "longest_context"
    margin: float | None = None
    predictive = False

    def priority(self, trajectory: TrajectoryView, now: float) -> float:
        return float(trajectory.context_tokens)


def test_the_scheduler_ranks_what_waits_and_arrival_breaks_ties() -> None:
    """The highest priority generates first, of equals the earliest."""
    rig = Rig(slots=1, scheduler=LongestContext())
    rig.pool(1)
    rig.submit("a", 4)
    rig.step("a0", output=50)
    rig.tools_finished("a0", appended=0)

    assert rig.plane.queue(WorkerId("w0"), 10) == ("a0", "a2", "a3")
    assert rig.step("a1") == [Generate(TrajectoryId("a0"), WorkerId("w0"), 1, 150.0, None)]
