"""Each invariant is violated once, and says so in a sentence."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from control_rig import Rig

from heddle.control.invariants import InvariantViolation
from heddle.control.state import ControlState, TrajectoryState, WorkerState
from heddle.types import BatchId, StopReason, TrajectoryId, TrajectoryPhase, WorkerId, WorkerPhase


def trajectory(state: ControlState, name: str) -> TrajectoryState:
    return state.trajectories[TrajectoryId(name)]


def w0(state: ControlState) -> WorkerState:
    return state.workers[WorkerId("w0")]


def lose_from_queue(state: ControlState) -> None:
    w0(state).queue.remove(TrajectoryId("a1"), BatchId("a"))


def put_in_the_pool_too(state: ControlState) -> None:
    state.unplaced[TrajectoryId("a1")] = trajectory(state, "a1")


def finish_without_forgetting(state: ControlState) -> None:
    trajectory(state, "a0").phase = TrajectoryPhase.FINISHED


def queue_while_cancelled(state: ControlState) -> None:
    trajectory(state, "a1").cancel_reason = StopReason.CANCELLED


def live_nowhere(state: ControlState) -> None:
    trajectory(state, "a0").worker_id = WorkerId("w9")


def forget_a_resident(state: ControlState) -> None:
    del w0(state).residents[TrajectoryId("a0")]


def leak_a_slot(state: ControlState) -> None:
    w0(state).running = 2


def exceed_the_slots(state: ControlState) -> None:
    w0(state).slots = 0


def idle_while_somebody_waits(state: ControlState) -> None:
    w0(state).slots = 2


def idle_on_a_dead_worker(state: ControlState) -> None:
    w0(state).phase = WorkerPhase.DOWN


def miscount_memory(state: ControlState) -> None:
    w0(state).kv_tokens += 1


def hold_back_in_line(state: ControlState) -> None:
    trajectory(state, "a1").held_back = True


def forget_who_generates(state: ControlState) -> None:
    w0(state).generating.clear()


def wait_for_a_stranger(state: ControlState) -> None:
    w0(state).preempting = TrajectoryId("a1")


def stop_while_running(state: ControlState) -> None:
    w0(state).stop_ordered = True


def miscount_a_phase(state: ControlState) -> None:
    state.batches[BatchId("a")].phases[TrajectoryPhase.BETWEEN] += 1


def forget_a_batch(state: ControlState) -> None:
    del state.batches[BatchId("a")]


def start_while_paused(state: ControlState) -> None:
    state.paused = True


def overlook_a_ready_worker(state: ControlState) -> None:
    state.ready = ()


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lose_from_queue, r"a1 \(queued, home w0\) waits at None"),
        (put_in_the_pool_too, r"a1 \(queued, home w0\) and the unplaced pool disagree"),
        (finish_without_forgetting, "a0 is finished but still remembered"),
        (queue_while_cancelled, r"a1 \(queued, home w0\) waits at w0"),
        (live_nowhere, "a0 lives on w9, which does not exist"),
        (forget_a_resident, "a0 is no resident of its home"),
        (leak_a_slot, r"w0 counts \(resident, running, waiting\) \(2, 2, 1\), but there are \(2, 1, 1\)"),
        (exceed_the_slots, "w0 runs 1 in 0 slots"),
        (idle_while_somebody_waits, "w0 has a free slot while 1 wait for one"),
        (idle_on_a_dead_worker, "a1 is idle on w0, which is down"),
        (miscount_memory, "w0 counts 101 tokens of memory, held are 100"),
        (hold_back_in_line, "a1 is held back exactly where it is not in the lot"),
        (forget_who_generates, "w0 counts 1 running and knows 0"),
        (wait_for_a_stranger, "w0 waits for the interruption of a1, which does not run there"),
        (stop_while_running, "w0 was ordered to stop while 1 run"),
        (miscount_a_phase, "batch a miscounts its between trajectories"),
        (forget_a_batch, "a0 belongs to no batch"),
        (start_while_paused, "1 generations started while dispatch was paused"),
        (overlook_a_ready_worker, "the list of ready workers is out of date"),
    ],
)
def test_damage_is_noticed(damage: Callable[[ControlState], None], sentence: str) -> None:
    """One generates, one waits; then somebody breaks it."""
    rig = Rig(slots=1)
    rig.pool(1)
    rig.submit("a", 2)
    state = rig.plane.state

    damage(state)

    with pytest.raises(InvariantViolation, match=sentence):
        state.check_invariants()
