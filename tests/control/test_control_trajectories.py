"""Batches and trajectories: events in, commands out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from control_rig import Rig, generated, make_batch, make_spec

from heddle.control.commands import Cancel, Generate
from heddle.control.events import (
    BatchCancelled,
    BatchSubmitted,
    DispatchPaused,
    DispatchResumed,
    Event,
    GenerationInterrupted,
    LengthPredicted,
    StepGenerated,
    ToolsFinished,
    ToolsStarted,
)
from heddle.control.state import IgnoreReason
from heddle.predict.passive import Passive
from heddle.types import (
    BatchId,
    InterruptReason,
    Prediction,
    StopReason,
    TrajectoryId,
    TrajectoryPhase,
    TrajectoryView,
    WorkerId,
)


def make_prediction(remaining: float, *, after: int) -> Prediction:
    return Prediction(remaining, remaining / 2, remaining * 2, after, "outside")


def test_a_batch_fills_the_slots_of_all_workers_in_order_of_arrival() -> None:
    """A submitted batch generates at once in every slot, the first arrivals first."""
    rig = Rig(slots=2)
    rig.pool(2)

    commands = rig.submit("a", 6)

    assert generated(commands) == [("a0", "w0"), ("a2", "w0"), ("a1", "w1"), ("a3", "w1")]
    assert rig.plane.queue(WorkerId("w0"), 10) == ("a4",)


def test_a_generate_carries_step_priority_and_prediction() -> None:
    """A recovered trajectory goes on with the step after those it has done."""
    rig = Rig()
    rig.pool(1)
    spec = make_spec("a0", generated_tokens=40, steps_done=3)

    commands = rig.send(BatchSubmitted(BatchId("a"), (spec,)))

    assert commands == [Generate(TrajectoryId("a0"), WorkerId("w0"), 3, -1.0, None)]
    assert rig.trajectory("a0").context_tokens == 140


def test_a_step_frees_its_slot_for_the_next_and_is_counted() -> None:
    """The slot goes to whoever waits; forced and sampled tokens join the context, sampled ones the total."""
    rig = Rig(slots=1)
    rig.pool(1)
    rig.submit("a", 2)

    commands = rig.step("a0", output=10, forced=4)

    assert generated(commands) == [("a1", "w0")]
    a0 = rig.trajectory("a0")
    assert (a0.phase, a0.steps_done) == (TrajectoryPhase.BETWEEN, 1)
    assert (a0.context_tokens, a0.generated_tokens) == (114, 10)


def test_tools_return_a_trajectory_to_the_end_of_the_queue_of_its_home() -> None:
    """After its tools a trajectory waits behind those that came before, at the same worker."""
    rig = Rig(slots=1)
    rig.pool(1)
    rig.submit("a", 3)
    rig.step("a0")

    assert rig.tools_started("a0") == []
    assert rig.trajectory("a0").phase is TrajectoryPhase.IN_TOOL
    assert rig.tools_finished("a0", appended=7) == []
    assert rig.plane.queue(WorkerId("w0"), 10) == ("a2", "a0")
    assert rig.trajectory("a0").context_tokens == 117


def test_tools_may_finish_without_having_started() -> None:
    """An environment that answers by itself needs no tool: the step goes from BETWEEN to the queue."""
    rig = Rig(slots=1)
    rig.pool(1)
    rig.submit("a", 1)
    rig.step("a0")

    commands = rig.tools_finished("a0")

    assert commands == [Generate(TrajectoryId("a0"), WorkerId("w0"), 1, -2.0, None)]


def test_an_interrupted_step_resumes_before_later_arrivals() -> None:
    """An interruption keeps the partial tokens and the place in the line."""
    rig = Rig(slots=1)
    rig.pool(1)
    rig.submit("a", 2)

    commands = rig.interrupt("a0", output=3)

    assert commands == [Generate(TrajectoryId("a0"), WorkerId("w0"), 0, -1.0, None)]
    assert rig.trajectory("a0").generated_tokens == 3


@pytest.mark.parametrize("phase", list(TrajectoryPhase)[:4])
def test_finishing_is_legal_from_every_phase_and_releases_what_was_held(phase: TrajectoryPhase) -> None:
    """Wherever it stands, the end of a trajectory leaves no trace of it."""
    rig = Rig(slots=1)
    rig.pool(1)
    rig.submit("a", 2)
    name = "a1" if phase is TrajectoryPhase.QUEUED else "a0"
    if phase in (TrajectoryPhase.BETWEEN, TrajectoryPhase.IN_TOOL):
        rig.step(name)
    if phase is TrajectoryPhase.IN_TOOL:
        rig.tools_started(name)
    assert rig.trajectory(name).phase is phase

    commands = rig.finish(name)

    assert generated(commands) == ([("a1", "w0")] if phase is TrajectoryPhase.GENERATING else [])
    assert TrajectoryId(name) not in rig.plane.state.trajectories
    assert rig.homes() == {"w0": 1}
    assert rig.plane.gauges().finished_total == {StopReason.COMPLETED: 1}


def test_finished_batches_leave_no_memory_but_counters() -> None:
    """After many batches only totals grow."""
    rig = Rig(slots=4)
    rig.pool(1)
    for number in range(50):
        rig.submit(f"b{number}-", 2)
        rig.step(f"b{number}-0")
        rig.finish(f"b{number}-0")
        rig.finish(f"b{number}-1", StopReason.CANCELLED)

    state = rig.plane.state
    assert (state.trajectories, state.batches, state.unplaced) == ({}, {}, {})
    assert state.workers[WorkerId("w0")].residents == {}
    assert rig.plane.gauges().finished_total == {StopReason.COMPLETED: 50, StopReason.CANCELLED: 50}
    assert rig.plane.batch_phases(BatchId("b0-")) == {}


def test_a_cancelled_batch_orders_each_end_once_and_starts_nothing_more() -> None:
    """Running ones keep their slots until they have ended; waiting ones are never dispatched."""
    rig = Rig(slots=1)
    rig.pool(1)
    rig.submit("a", 3)
    rig.submit("b", 1)
    order = BatchCancelled(BatchId("a"), StopReason.CANCELLED)

    commands = rig.send(order)

    detail = "batch a was cancelled"
    assert commands == [Cancel(TrajectoryId(f"a{i}"), StopReason.CANCELLED, detail) for i in range(3)]
    assert rig.send(order) == []
    assert rig.plane.queue(WorkerId("w0"), 10) == ("b0",)
    assert rig.finish("a1", StopReason.CANCELLED) == []
    assert generated(rig.finish("a0", StopReason.CANCELLED)) == [("b0", "w0")]


def test_a_cancelled_trajectory_that_comes_back_does_not_queue() -> None:
    """Tools that end, and generations that are interrupted after the order, bring nobody back."""
    rig = Rig(slots=2)
    rig.pool(1)
    rig.submit("a", 2)
    rig.step("a0")
    rig.send(BatchCancelled(BatchId("a"), StopReason.CANCELLED))

    assert rig.tools_finished("a0") == []
    assert rig.interrupt("a1") == []
    assert rig.plane.queue(WorkerId("w0"), 10) == ()
    assert rig.plane.explain(TrajectoryId("a0"), rig.now).reason == (
        "it was ordered to end (cancelled) and is winding up"
    )


def test_nothing_starts_while_dispatch_is_paused() -> None:
    """A pause lets running generations end and starts none until dispatch resumes."""
    rig = Rig(slots=1)
    rig.pool(2)
    rig.submit("a", 3)
    rig.send(DispatchPaused())

    assert rig.step("a0") == []
    assert rig.tools_finished("a0") == []
    assert rig.submit("b", 2) == []
    # Batches take turns, and it is b's.
    assert generated(rig.send(DispatchResumed())) == [("b1", "w0")]


def test_a_second_pause_and_a_second_resume_change_nothing() -> None:
    """Asking for what is so already is ignored, and counted."""
    rig = Rig()
    rig.send(DispatchResumed())
    rig.send(DispatchPaused())
    rig.send(DispatchPaused())

    assert rig.plane.last_ignored is IgnoreReason.NO_CHANGE
    assert rig.plane.gauges().ignored_total == {IgnoreReason.NO_CHANGE: 2}


def test_late_and_foreign_events_are_ignored_and_counted() -> None:
    """Events that do not fit leave no trace but a count of their reason."""
    rig = Rig(slots=1)
    rig.pool(2)
    rig.submit("a", 3)
    a0, a2, w0, w1 = TrajectoryId("a0"), TrajectoryId("a2"), WorkerId("w0"), WorkerId("w1")
    lost = InterruptReason.WORKER_LOST
    misfits: list[tuple[Event, IgnoreReason]] = [
        (StepGenerated(TrajectoryId("z"), w0, 0, 1, 0, 1), IgnoreReason.UNKNOWN_TRAJECTORY),
        (StepGenerated(a2, w0, 0, 1, 0, 1), IgnoreReason.WRONG_PHASE),
        (StepGenerated(a0, w1, 0, 1, 0, 1), IgnoreReason.WRONG_WORKER),
        (StepGenerated(a0, w0, 1, 1, 0, 1), IgnoreReason.WRONG_STEP),
        (GenerationInterrupted(TrajectoryId("z"), w0, 0, 1, lost), IgnoreReason.UNKNOWN_TRAJECTORY),
        (GenerationInterrupted(a0, w1, 0, 1, lost), IgnoreReason.WRONG_WORKER),
        (ToolsStarted(a0, 0, ()), IgnoreReason.WRONG_PHASE),
        (ToolsStarted(TrajectoryId("z"), 0, ()), IgnoreReason.UNKNOWN_TRAJECTORY),
        (ToolsFinished(a2, 0, 1), IgnoreReason.WRONG_PHASE),
        (ToolsFinished(TrajectoryId("z"), 0, 1), IgnoreReason.UNKNOWN_TRAJECTORY),
        (BatchCancelled(BatchId("z"), StopReason.CANCELLED), IgnoreReason.UNKNOWN_BATCH),
        (make_batch("a", 9), IgnoreReason.DUPLICATE_BATCH),
        (BatchSubmitted(BatchId("b"), (make_spec("a0"),)), IgnoreReason.DUPLICATE_TRAJECTORY),
        (LengthPredicted(TrajectoryId("z"), make_prediction(1, after=0)), IgnoreReason.UNKNOWN_TRAJECTORY),
        (LengthPredicted(a0, make_prediction(1, after=1)), IgnoreReason.WRONG_STEP),
    ]
    before = repr(rig.plane.state.trajectories)

    for event, reason in misfits:
        assert (rig.send(event), rig.plane.last_ignored) == ([], reason)

    assert repr(rig.plane.state.trajectories) == before
    assert sum(rig.plane.gauges().ignored_total.values()) == len(misfits)


def test_tools_of_another_step_are_ignored() -> None:
    """An observation that belongs to an earlier step must not start the next one."""
    rig = Rig()
    rig.pool(1)
    rig.submit("a", 1)
    rig.step("a0")

    rig.send(ToolsFinished(TrajectoryId("a0"), 1, 5))
    assert rig.plane.last_ignored is IgnoreReason.WRONG_STEP
    rig.send(ToolsStarted(TrajectoryId("a0"), 1, ("python",)))
    assert rig.plane.last_ignored is IgnoreReason.WRONG_STEP
    assert rig.trajectory("a0").phase is TrajectoryPhase.BETWEEN


def test_a_batch_that_names_a_trajectory_twice_registers_it_once() -> None:
    """Duplicates within a batch are counted; the rest of the batch is served."""
    rig = Rig()
    rig.pool(1)

    commands = rig.send(BatchSubmitted(BatchId("a"), (make_spec("a0"), make_spec("a0"), make_spec("a1"))))

    assert generated(commands) == [("a0", "w0"), ("a1", "w0")]
    assert rig.plane.gauges().ignored_total == {IgnoreReason.DUPLICATE_TRAJECTORY: 1}


def test_a_newer_prediction_wins() -> None:
    """An estimate from outside replaces what is known unless that was made after a later step."""
    rig = Rig()
    rig.pool(1)
    rig.submit("a", 1)
    rig.step("a0")
    a0 = TrajectoryId("a0")

    rig.send(LengthPredicted(a0, make_prediction(50, after=1)))
    rig.send(LengthPredicted(a0, make_prediction(70, after=0)))

    assert rig.plane.last_ignored is IgnoreReason.STALE_PREDICTION
    assert rig.trajectory("a0").prediction == make_prediction(50, after=1)
    [command] = rig.tools_finished("a0")
    assert isinstance(command, Generate)
    assert command.prediction == make_prediction(50, after=1)


class Recorder(Passive):
    """A predictor that knows nothing and remembers what it was shown."""

    name = "recorder"

    def __init__(self) -> None:
        self.seen: list[str] = []

    def predict(self, trajectories: Sequence[TrajectoryView]) -> Sequence[None]:
        return [None] * len(trajectories)

    def observe_step(self, trajectory: TrajectoryView) -> None:
        self.seen.append(f"step {trajectory.trajectory_id} {trajectory.steps_done}")

    def observe_finished(self, trajectory: TrajectoryView) -> None:
        self.seen.append(f"finished {trajectory.trajectory_id}")

    def forget(self, trajectory_id: TrajectoryId) -> None:
        self.seen.append(f"forget {trajectory_id}")


def test_the_predictor_learns_from_own_endings_only() -> None:
    """Who was cut short by somebody or by the clock says nothing about lengths."""
    recorder = Recorder()
    rig = Rig(slots=8, predictor=recorder)
    rig.pool(1)
    rig.submit("a", 5)
    rig.step("a0")
    reasons = [
        StopReason.COMPLETED,
        StopReason.MAX_TOKENS,
        StopReason.CANCELLED,
        StopReason.TIMED_OUT,
        StopReason.ENGINE_FAILED,
    ]

    for index, reason in enumerate(reasons):
        rig.finish(f"a{index}", reason)

    assert recorder.seen == ["step a0 1", "finished a0", "finished a1", "forget a2", "forget a3", "forget a4"]
