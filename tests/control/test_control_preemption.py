"""Who takes whose slot, and who does not."""

from __future__ import annotations

import pytest
from control_rig import Rig, generated, make_spec, preempted

from heddle.control.commands import Preempt
from heddle.control.dispatch import DispatchRules
from heddle.control.events import BatchSubmitted, LengthPredicted, TrajectorySpec
from heddle.control.preemption import PreemptionRules
from heddle.predict import make_predictor
from heddle.scheduling import make_scheduler
from heddle.types import BatchId, InterruptReason, Prediction, TrajectoryId, WorkerId

PREEMPTED = InterruptReason.PREEMPTED


def make_rig(*, slots: int = 1, scheduler: str = "progressive", rules: DispatchRules | None = None) -> Rig:
    """One worker; events are a second apart, so whatever runs has run long enough."""
    rig = Rig(
        slots=slots,
        scheduler=make_scheduler(scheduler, margin_tokens=32.0),
        predictor=make_predictor("oracle"),
        rules=rules or DispatchRules(),
    )
    rig.pool(1)
    return rig


def submit(rig: Rig, batch: str, *specs: TrajectorySpec) -> list[str]:
    """Whom the arrival of a batch preempts."""
    return preempted(rig.send(BatchSubmitted(BatchId(batch), specs)))


def bring_back(rig: Rig, long: int, *others: TrajectorySpec) -> list[str]:
    """``long`` (tokens) is in its tool while the others run and wait; whom its return preempts."""
    submit(rig, "b", make_spec("long", known=long), *others)
    rig.step("long", output=10)
    rig.tools_started("long")
    return preempted(rig.tools_finished("long"))


def test_a_longer_one_takes_the_slot_of_the_shortest() -> None:
    """The slot is free only when the interruption has come; then it is the longer one's."""
    rig = make_rig(slots=2)
    submit(rig, "b", *(make_spec(name, known=n) for name, n in (("long", 900), ("a", 300), ("b", 200))))
    rig.step("long", output=10)
    commands = rig.tools_finished("long")

    assert commands == [Preempt(TrajectoryId("b"), WorkerId("w0"))]
    assert rig.plane.state.workers[WorkerId("w0")].running == 2
    assert rig.plane.explain(TrajectoryId("b"), rig.now).reason == (
        "step 0 generates on w0 and is being preempted"
    )
    assert generated(rig.interrupt("b", output=40, reason=PREEMPTED)) == [("long", "w0")]
    assert rig.trajectory("b").generated_tokens == 40
    assert rig.plane.explain(TrajectoryId("b"), rig.now).reason == (
        "2 of 2 slots of w0 are taken; preempted, next in line"
    )


def test_a_step_that_ends_first_frees_the_slot_all_the_same() -> None:
    """The order is void then, and the next one may be given."""
    rig = make_rig()
    assert bring_back(rig, 900, make_spec("a", known=300)) == ["a"]
    assert generated(rig.step("a", output=20)) == [("long", "w0")]
    assert rig.plane.state.workers[WorkerId("w0")].preempting is None


@pytest.mark.parametrize(("length", "victims"), [(332 + 10, []), (333 + 10, ["a"])])
def test_the_lead_must_exceed_the_margin(length: int, victims: list[str]) -> None:
    """Strictly: 32 tokens more are not enough, 33 are. So equals never take turns."""
    assert bring_back(make_rig(), length, make_spec("a", known=300)) == victims


@pytest.mark.parametrize("scheduler", ["fcfs", "round_robin"])
def test_who_knows_no_lengths_preempts_nobody(scheduler: str) -> None:
    """The margin of these schedulers is none."""
    rig = make_rig(scheduler=scheduler)
    assert bring_back(rig, 900, make_spec("a", known=50)) == []


@pytest.mark.parametrize(("long", "other"), [(None, 50), (900, None)])
def test_a_guess_interrupts_nobody_and_is_not_interrupted(long: int | None, other: int | None) -> None:
    """Without a prediction the rank is as good as any for waiting, and no more."""
    rig = make_rig()
    submit(rig, "b", make_spec("long", known=long), make_spec("other", known=other))
    first, second = ("long", "other") if long else ("other", "long")
    rig.step(first, output=300)
    rig.tools_started(first)
    assert rig.trajectory(second).rank + 32.0 < 300.0
    assert preempted(rig.tools_finished(first)) == []


def test_without_predictions_service_still_preempts() -> None:
    """Levels of attained service are facts."""
    rig = make_rig(scheduler="autellix")
    submit(rig, "b", make_spec("new"), make_spec("old", generated_tokens=500, steps_done=3))
    rig.step("new", output=10)
    rig.tools_started("new")
    assert preempted(rig.tools_finished("new")) == ["old"]


def test_shortest_first_preempts_the_longest() -> None:
    """The order is the scheduler's, the rules are the same."""
    rig = make_rig(scheduler="shortest_first")
    submit(rig, "b", make_spec("short", known=60), make_spec("a", known=300))
    rig.step("short", output=10)
    assert preempted(rig.tools_finished("short")) == ["a"]


def test_a_generation_under_a_grammar_is_left_alone() -> None:
    """It would lose all it has; the next longer one has to give way."""
    rig = make_rig(slots=2)
    fixed = make_spec("fixed", known=100, preemptible=False)
    submit(rig, "b", make_spec("long", known=900), fixed, make_spec("a", known=90))
    rig.step("long", output=10)
    assert rig.trajectory("a").rank < rig.trajectory("fixed").rank
    rig.plane.state.workers[WorkerId("w0")].generating[TrajectoryId("a")].preemptible = False
    assert preempted(rig.tools_finished("long")) == []


def test_whoever_has_just_begun_or_is_about_to_end_is_left_alone() -> None:
    """Neither saves anything: one has paid its start for nothing, the other frees its slot by itself."""
    rules = DispatchRules(preemption=PreemptionRules(min_run_s=10.0))
    assert bring_back(make_rig(rules=rules), 900, make_spec("new", known=300)) == []
    assert bring_back(make_rig(), 900, make_spec("ending", known=15)) == []
    assert bring_back(make_rig(), 900, make_spec("ending", known=300, step_limit=30)) == []
    # It has run for two seconds at ten tokens a second.
    assert bring_back(make_rig(), 900, make_spec("a", known=300, step_limit=60)) == ["a"]


def test_progress_within_a_step_counts_by_the_rate_of_its_worker() -> None:
    """After two seconds at twenty tokens a second little is left of fifty."""
    rig = make_rig()
    submit(rig, "b", make_spec("long", known=900), make_spec("a", known=50))
    rig.step("long", output=20)
    rig.tools_started("long")
    assert rig.plane.state.workers[WorkerId("w0")].seconds_per_token == pytest.approx(1 / 20)
    assert preempted(rig.tools_finished("long")) == []


def test_a_step_is_interrupted_a_bounded_number_of_times() -> None:
    """After that nothing outranks it; a new step starts with a clean slate."""
    rules = DispatchRules(preemption=PreemptionRules(max_per_step=1))
    rig = make_rig(rules=rules)
    assert bring_back(rig, 900, make_spec("a", known=300)) == ["a"]
    rig.interrupt("a", output=5, reason=PREEMPTED)
    rig.step("long", output=10)
    rig.tools_started("long")
    assert rig.trajectory("a").preemptions == 1
    assert preempted(rig.tools_finished("long")) == []
    rig.step("a", output=10)
    assert rig.trajectory("a").preemptions == 0


def test_an_interruption_by_a_fault_does_not_count() -> None:
    """Only those by order are bounded."""
    rig = make_rig()
    submit(rig, "b", make_spec("a", known=300))
    rig.interrupt("a")
    assert rig.trajectory("a").preemptions == 0


def test_one_preemption_is_under_way_per_worker() -> None:
    """The next is considered when the first has come."""
    rig = make_rig(slots=2)
    names = {"l1": 900, "l2": 800, "a": 300, "b": 200}
    submit(rig, "b", *(make_spec(name, known=n) for name, n in names.items()))
    rig.step("l1", output=10)
    rig.step("l2", output=10)
    assert preempted(rig.tools_finished("l2")) == ["b"]
    assert preempted(rig.tools_finished("l1")) == []
    commands = rig.interrupt("b", output=1, reason=PREEMPTED)
    assert generated(commands) == [("l1", "w0")]
    assert preempted(commands) == ["a"]


def test_batches_do_not_preempt_each_other() -> None:
    """Their ranks mean nothing to each other; turns are taken slot by slot."""
    rig = make_rig()
    submit(rig, "a", make_spec("a0", known=50))
    assert submit(rig, "b", make_spec("b0", known=900)) == []
    assert (
        rig.plane.explain(TrajectoryId("b0"), rig.now).reason == "1 of 1 slots of w0 are taken; next in line"
    )


def test_a_new_estimate_moves_a_waiting_one_and_may_preempt() -> None:
    """A prediction from outside takes effect at once, not at the next step."""
    rig = make_rig()
    submit(rig, "b", make_spec("a", known=300), make_spec("b", known=200), make_spec("c", known=100))
    assert rig.plane.queue(WorkerId("w0"), 9) == ("b", "c")
    event = LengthPredicted(TrajectoryId("c"), Prediction(900.0, 900.0, 900.0, 0, "outside"))
    assert preempted(rig.send(event)) == ["a"]
    assert rig.plane.queue(WorkerId("w0"), 9) == ("c", "b")


def test_preemption_can_be_switched_off() -> None:
    """The order of the queue stays."""
    rules = DispatchRules(preemption=PreemptionRules(enabled=False))
    assert bring_back(make_rig(rules=rules), 900, make_spec("a", known=300)) == []


@pytest.mark.parametrize(("ageing_per_s", "order"), [(0.0, ("first", "old")), (10.0, ("old", "first"))])
def test_ageing_lifts_whoever_waits_long(ageing_per_s: float, order: tuple[str, ...]) -> None:
    """At ten tokens a second, half a minute of waiting outweighs being 150 tokens shorter."""
    rig = make_rig(rules=DispatchRules(ageing_per_s=ageing_per_s))
    names = {"first": 500, "old": 100, "third": 400}
    submit(rig, "b", *(make_spec(name, known=n) for name, n in names.items()))
    rig.now += 30.0
    rig.step("first", output=250)
    rig.tools_finished("first")
    assert rig.plane.queue(WorkerId("w0"), 9) == order
