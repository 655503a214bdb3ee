"""Whole simulations: equal runs, conservation, faults, and logs that replay."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim_builders import PREFILL_PER_S, check_result, make_hardware, make_trajectory, make_workload

from heddle.control.build import PlaneSettings
from heddle.control.log import decode_entry, decode_header
from heddle.control.replay import replay
from heddle.errors import ConfigError
from heddle.planning.profile import DegreeProfile, Profile
from heddle.simulate.hardware import Hardware, PrefillMode
from heddle.simulate.options import (
    Cancellation,
    Fault,
    SimulationOptions,
    ToolModel,
    WorkerCrash,
    WorkerSlowdown,
)
from heddle.simulate.result import SimulationResult
from heddle.simulate.simulator import simulate
from heddle.simulate.workload import Workload, WorkStep, WorkTrajectory
from heddle.types import GroupId, StopReason, TrajectoryId, WorkerId

PROFILE = Profile(
    "gpu",
    "model",
    0.0,
    (DegreeProfile.measured(1, [(1, 0.01), (2, 0.011)], prefill_tokens_per_s=PREFILL_PER_S),),
)
PREEMPTING = PlaneSettings(scheduler="progressive", predictor="oracle", slots=2, preempt_margin_tokens=8.0)


def play(
    workload: Workload,
    plane: PlaneSettings = PREEMPTING,
    hardware: Hardware | None = None,
    options: SimulationOptions | None = None,
) -> SimulationResult:
    """Run with the invariants checked after every event, and hold the result to its rules."""
    result = simulate(
        workload,
        plane,
        hardware or make_hardware(gpus=2, abort_s=0.02),
        seed=1,
        configuration="test",
        options=options or SimulationOptions(check_every=1),
    )
    check_result(workload, result)
    return result


def busy_workload() -> Workload:
    """More trajectories than slots, of very different lengths."""
    return make_workload(
        *(make_trajectory(f"t{i}", [20 + 37 * i % 150] * (1 + i % 4), group=f"g{i // 4}") for i in range(12))
    )


class TestRuns:
    """What any two runs have in common, and what their logs say."""

    def test_two_runs_are_equal(self) -> None:
        options = SimulationOptions(record_spans=True, tools=ToolModel(concurrency=2, cold_start_s=0.5))

        assert play(busy_workload(), options=options) == play(busy_workload(), options=options)

    def test_its_log_replays(self) -> None:
        lines: list[bytes] = []
        faults = (WorkerCrash(WorkerId("w1"), at_s=2.0, restart_s=1.0),)
        result = play(busy_workload(), options=SimulationOptions(log=lines.append, faults=faults))
        entries = [decode_entry(line) for line in lines[1:]]
        report = replay(decode_header(lines[0]), entries)

        assert report.difference is None
        assert (report.events, report.open_trajectories) == (result.events, 0)
        assert report.ignored == 0

    def test_events_come_in_the_order_of_a_live_run(self) -> None:
        lines: list[bytes] = []
        play(make_workload(make_trajectory("t", [5, 5])), options=SimulationOptions(log=lines.append))
        names = [type(decode_entry(line).event).__name__ for line in lines[1:]]

        assert names == [
            "PoolRequested",
            *("WorkerReady", "WorkerReady"),
            "BatchSubmitted",
            *("StepGenerated", "ToolsStarted", "ToolsFinished"),
            *("StepGenerated", "TrajectoryEnding", "TrajectoryFinished"),
        ]

    def test_spans_never_overlap_beyond_the_slots(self) -> None:
        result = play(busy_workload(), options=SimulationOptions(record_spans=True))
        for worker in result.workers:
            spans = [span for span in result.spans if span.worker_id == worker.worker_id]
            edges = sorted([(s.began_at, 1) for s in spans] + [(s.ended_at, -1) for s in spans])
            running = most = 0
            for _, change in edges:
                running += change
                most = max(most, running)
            assert most <= worker.slots

    def test_later_arrivals_wait_for_their_time(self) -> None:
        result = play(make_workload(make_trajectory("a", [5]), make_trajectory("b", [5], arrival_s=9.0)))

        assert result.outcomes[1].arrived_at == 9.0
        assert result.outcomes[1].finished_at > 9.0
        assert result.outcomes[0].finished_at < 9.0


class TestFaults:
    """Crashes, slow workers, cancellations, and pools that cannot serve."""

    def test_a_crash_costs_what_was_computed_and_no_token(self) -> None:
        work = make_workload(make_trajectory("t", [400]))
        crash = WorkerCrash(WorkerId("w0"), at_s=2.0, restart_s=None)
        outcome = play(work, options=SimulationOptions(check_every=1, faults=(crash,))).outcomes[0]

        assert outcome.generated_tokens == 400
        assert outcome.migrations == 1
        assert outcome.recomputed_tokens > 100
        assert outcome.parts.overhead_s == pytest.approx(0.1)

    def test_what_was_never_computed_is_not_computed_again(self) -> None:
        long = WorkTrajectory(TrajectoryId("long"), GroupId("g"), (WorkStep(3000, 10),))
        waits = WorkTrajectory(TrajectoryId("waits"), GroupId("h"), (WorkStep(3000, 10),))
        crash = WorkerCrash(WorkerId("w0"), at_s=1.0, restart_s=1.0)
        result = play(
            make_workload(long, waits),
            PlaneSettings(slots=2, kv_guard=False),
            make_hardware(kv_tokens=4000, chunk_tokens=512),
            SimulationOptions(check_every=1, faults=(crash,)),
        )

        # After a second one chunk of the first prompt is computed, and the other one waits for memory.
        assert [outcome.recomputed_tokens for outcome in result.outcomes] == [512, 0]

    def test_a_pool_that_is_lost_for_good_ends_its_trajectories(self) -> None:
        faults = tuple(WorkerCrash(WorkerId(f"w{i}"), at_s=1.0 + i, restart_s=None) for i in range(2))
        result = play(busy_workload(), options=SimulationOptions(check_every=1, faults=faults))

        assert {outcome.stop_reason for outcome in result.outcomes} == {StopReason.ENGINE_FAILED}

    def test_a_slow_worker_takes_its_factor(self) -> None:
        work, hardware = make_workload(make_trajectory("t", [200])), make_hardware()
        slow = WorkerSlowdown(WorkerId("w0"), at_s=0.0, factor=3.0)
        usual = play(work, hardware=hardware).makespan_s
        slowed = play(work, hardware=hardware, options=SimulationOptions(faults=(slow,))).makespan_s

        assert slowed == pytest.approx(3.0 * usual)

    def test_a_slowdown_ends(self) -> None:
        work, hardware = make_workload(make_trajectory("t", [200])), make_hardware()
        slow = WorkerSlowdown(WorkerId("w0"), at_s=1.0, factor=2.0, until_s=1.5)
        usual = play(work, hardware=hardware).makespan_s
        slowed = play(work, hardware=hardware, options=SimulationOptions(faults=(slow,))).makespan_s

        assert slowed == pytest.approx(usual + 0.25, abs=0.03)

    def test_cancelled_trajectories_end_and_keep_what_they_have(self) -> None:
        options = SimulationOptions(check_every=1, faults=(Cancellation(at_s=2.0),))
        result = play(busy_workload(), options=options)
        cancelled = [o for o in result.outcomes if o.stop_reason is StopReason.CANCELLED]

        assert cancelled
        assert all(outcome.finished_at < 2.1 for outcome in cancelled)
        assert any(outcome.generated_tokens for outcome in cancelled)

    @pytest.mark.parametrize(
        ("trajectory", "complaint"),
        [
            (WorkTrajectory(TrajectoryId("t"), GroupId("g"), ()), "must have a step"),
            (make_trajectory("t", [5], prompt=0), "begins with a prompt"),
            (make_trajectory("t", [0]), "cannot be played"),
            (
                WorkTrajectory(TrajectoryId("t"), GroupId("g"), (WorkStep(5, 5, ("x",), None),)),
                "t, step 0: its tool time was not recorded",
            ),
        ],
    )
    def test_what_cannot_be_played_is_refused(self, trajectory: WorkTrajectory, complaint: str) -> None:
        with pytest.raises(ConfigError, match=complaint):
            play(make_workload(trajectory))

    def test_a_fault_of_an_unknown_worker_is_refused(self) -> None:
        crash = WorkerCrash(WorkerId("w9"), at_s=1.0)
        with pytest.raises(ConfigError, match="no worker w9; there are w0, w1"):
            play(busy_workload(), options=SimulationOptions(faults=(crash,)))

    def test_a_degree_without_step_times_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="no step times of degree 2; known are 1"):
            play(busy_workload(), PlaneSettings(pool="2"), make_hardware(gpus=2))


_step_tokens = st.integers(1, 120)
_trajectories = st.lists(
    st.tuples(st.lists(_step_tokens, min_size=1, max_size=4), st.integers(1, 300), st.integers(0, 2)),
    min_size=1,
    max_size=10,
)
_faults = st.lists(
    st.one_of(
        st.builds(
            WorkerCrash,
            st.sampled_from([WorkerId("w0"), WorkerId("w1")]),
            st.floats(0.0, 6.0),
            st.one_of(st.none(), st.floats(0.0, 3.0)),
        ),
        st.builds(WorkerSlowdown, st.just(WorkerId("w0")), st.floats(0.0, 6.0), st.floats(0.5, 4.0)),
        st.builds(Cancellation, st.floats(0.0, 20.0)),
    ),
    max_size=3,
)


class TestConservation:
    """Whatever happens: the invariants hold, and what is asked for is what is generated."""

    @settings(max_examples=120, deadline=None)
    @given(
        drawn=_trajectories,
        faults=_faults,
        scheduler=st.sampled_from(["fcfs", "round_robin", "autellix", "shortest_first", "progressive"]),
        predictor=st.sampled_from(["mean_by_step", "oracle", "noisy_oracle"]),
        mode=st.sampled_from(PrefillMode),
        kv_tokens=st.sampled_from([None, 600, 1500]),
        concurrency=st.sampled_from([None, 1]),
        request_s=st.sampled_from([0.0, 0.05]),
        migration=st.sampled_from(["none", "rank", "gated", "replan"]),
        transfers=st.booleans(),
    )
    def test_every_token_is_generated_once(
        self,
        drawn: Sequence[tuple[Sequence[int], int, int]],
        faults: Sequence[Fault],
        scheduler: str,
        predictor: str,
        mode: PrefillMode,
        kv_tokens: int | None,
        concurrency: int | None,
        request_s: float,
        migration: str,
        transfers: bool,
    ) -> None:
        workload = make_workload(
            *(
                make_trajectory(
                    f"t{i}", outputs, prompt=prompt, tool_s=0.3, group=f"g{i % 3}", arrival_s=late
                )
                for i, (outputs, prompt, late) in enumerate(drawn)
            )
        )
        hardware = make_hardware(
            gpus=2, kv_tokens=kv_tokens, mode=mode, chunk_tokens=64, abort_s=0.03, request_s=request_s
        )
        plane = PlaneSettings(
            scheduler=scheduler,
            predictor=predictor,
            slots=2,
            preempt_margin_tokens=4.0,
            migration=migration,
            profile=PROFILE,
            transfer_tokens_per_s=hardware.link.tokens_per_s if transfers else None,
        )
        tools = ToolModel(concurrency=concurrency, cold_start_s=0.2, keep_warm_s=1.0)
        options = SimulationOptions(check_every=1, faults=tuple(faults), tools=tools, overhead_s=0.01)

        play(workload, plane, hardware, options)
