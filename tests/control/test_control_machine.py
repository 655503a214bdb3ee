"""Random histories of a data plane that crashes, drains, duplicates and delays.

The machine plays the data plane: it knows which generations it was ordered to run, and holds the control
plane to what it promised. At the end of each history everything open is driven to its end, and the
recorded history must replay to the same bytes.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from random_data_plane import RandomDataPlane

from heddle.control.build import PlaneSettings, build_plane
from heddle.control.events import (
    BatchCancelled,
    BatchSubmitted,
    DispatchPaused,
    DispatchResumed,
    GenerationInterrupted,
    LengthPredicted,
    PoolRequested,
    StepGenerated,
    ToolsFinished,
    ToolsStarted,
    TrajectoryFinished,
    TrajectorySpec,
    TransferFailed,
    TransferFinished,
    WorkerAdded,
    WorkerDrainRequested,
    WorkerLost,
    WorkerReady,
    WorkerStopped,
)
from heddle.control.log import decode_entry, encode_entry
from heddle.control.replay import replay
from heddle.control.state import IgnoreReason
from heddle.migration import MIGRATION_PLANNERS
from heddle.placement import PLACERS
from heddle.planning.profile import DegreeProfile, Profile
from heddle.scheduling import SCHEDULERS
from heddle.types import (
    BatchId,
    GroupId,
    InterruptReason,
    Prediction,
    StopReason,
    TrajectoryId,
    WorkerId,
    WorkerSpec,
)

PROFILE = Profile(
    "", "", 100.0, (DegreeProfile.measured(1, [(1, 0.01), (2, 0.02)], prefill_tokens_per_s=1e5),)
)
"""A step costs as much for each member as it does alone, so that moving one helps."""

SETTINGS = st.builds(
    PlaneSettings,
    scheduler=st.sampled_from(tuple(SCHEDULERS)),
    predictor=st.sampled_from(["mean_by_step", "oracle", "noisy_oracle"]),
    pool=st.just("1+1"),
    slots=st.just(2),
    preempt_margin_tokens=st.sampled_from([0.0, 5.0]),
    max_preemptions_per_step=st.integers(0, 2),
    ageing_per_s=st.sampled_from([0.0, 3.0]),
    placer=st.sampled_from(tuple(PLACERS)),
    migration=st.sampled_from(tuple(MIGRATION_PLANNERS)),
    profile=st.just(PROFILE),
    transfer_tokens_per_s=st.sampled_from([None, 1e4]),
)
CAPACITIES = st.sampled_from([None, 30, 100, 4096])
ANY = st.integers(min_value=0, max_value=1 << 16)
"""An index into whatever there is to choose from, modulo its length."""

TOKENS = st.integers(min_value=0, max_value=50)


class DataPlane(RandomDataPlane):
    """What a data plane may say, in any order it might say it."""

    @invariant()
    def state_is_consistent(self) -> None:
        self.plane.state.check_invariants()

    @invariant()
    def nothing_is_lost(self) -> None:
        assert set(self.plane.state.trajectories) == set(self.open)

    # --------------------------------------------------------------------------------------- rules

    @initialize(pool_first=st.booleans(), chosen=SETTINGS, capacity=CAPACITIES)
    def start(self, pool_first: bool, chosen: PlaneSettings, capacity: int | None) -> None:
        self.settings = chosen
        self.plane = build_plane(chosen)
        if pool_first:
            self.send(PoolRequested(2))
            for worker in [*self.known_workers]:
                self.send(WorkerReady(worker, 2, capacity))

    @rule(
        size=st.integers(min_value=1, max_value=6),
        steps_done=st.integers(min_value=0, max_value=2),
        totals=st.none() | st.integers(min_value=0, max_value=200),
        preemptible=st.booleans(),
        weight=st.sampled_from([1.0, 2.5]),
        deadline_s=st.sampled_from([None, -2.0, 20.0]),
    )
    def submit(
        self,
        size: int,
        steps_done: int,
        totals: int | None,
        preemptible: bool,
        weight: float,
        deadline_s: float | None,
    ) -> None:
        name = f"b{self.batches}"
        self.batches += 1
        specs = tuple(
            TrajectorySpec(
                TrajectoryId(f"{name}-t{i}"),
                GroupId(name),
                10,
                100,
                10 + steps_done,
                steps_done,
                steps_done,
                preemptible=preemptible or i % 2 == 0,
                known_total_tokens=None if totals is None else totals * (i + 1),
            )
            for i in range(size)
        )
        self.send(BatchSubmitted(BatchId(name), specs, weight, deadline_s))

    @precondition(lambda self: self.told_to_stop)
    @rule(output=TOKENS)
    def obey_preemption(self, output: int) -> None:
        name = min(self.told_to_stop)
        worker, step = self.running[name]
        self.send(GenerationInterrupted(name, worker, step, output, InterruptReason.PREEMPTED))

    @precondition(lambda self: self.running)
    @rule(which=ANY, output=TOKENS)
    def step(self, which: int, output: int) -> None:
        name = list(self.running)[which % len(self.running)]
        worker, step = self.running[name]
        self.send(StepGenerated(name, worker, step, 10, 0, output, output % 3))

    @precondition(lambda self: self.running)
    @rule(which=ANY, output=TOKENS, reason=st.sampled_from(InterruptReason))
    def interrupt(self, which: int, output: int, reason: InterruptReason) -> None:
        name = list(self.running)[which % len(self.running)]
        worker, step = self.running[name]
        self.send(GenerationInterrupted(name, worker, step, output, reason))

    @precondition(lambda self: self.running)
    @rule(which=ANY, wrong_step=st.booleans(), interrupted=st.booleans())
    def mistake(self, which: int, wrong_step: bool, interrupted: bool) -> None:
        """The end of a generation that does not run: of another step, or on another worker."""
        name = list(self.running)[which % len(self.running)]
        worker, step = self.running[name]
        step, worker = (step + 1, worker) if wrong_step else (step, WorkerId("elsewhere"))
        if interrupted:
            self.send(GenerationInterrupted(name, worker, step, 9, InterruptReason.ENGINE_ERROR))
        else:
            self.send(StepGenerated(name, worker, step, 10, 0, 9))
        assert self.plane.last_ignored in (IgnoreReason.WRONG_STEP, IgnoreReason.WRONG_WORKER)

    @precondition(lambda self: self.in_hand)
    @rule(which=ANY)
    def tools_start(self, which: int) -> None:
        name = sorted(self.in_hand)[which % len(self.in_hand)]
        self.send(ToolsStarted(name, self.open[name] - 1, ("python",)))

    @precondition(lambda self: self.running)
    @rule(which=ANY, tokens=st.floats(min_value=0, max_value=1e3))
    def step_into_tools(self, which: int, tokens: float) -> None:
        """With a new estimate in between: the moment at which planners propose."""
        name = list(self.running)[which % len(self.running)]
        worker, step = self.running[name]
        self.send(StepGenerated(name, worker, step, 10, 0, 5))
        self.send(LengthPredicted(name, Prediction(tokens, tokens, tokens, step + 1, "outside")))
        self.send(ToolsStarted(name, step, ("python",)))

    @precondition(lambda self: self.transfers)
    @rule(which=ANY, done=st.booleans())
    def answer_transfer(self, which: int, done: bool) -> None:
        """Done or not; a cancelled one may have been done just before."""
        order = list(self.transfers.values())[which % len(self.transfers)]
        moved = (order.trajectory_id, order.source, order.target)
        cancelled = order.trajectory_id in self.broken_off
        self.send(
            TransferFinished(*moved, order.context_tokens) if done else TransferFailed(*moved, "broken")
        )
        assert self.plane.last_ignored is None
        state = self.plane.state.trajectories.get(order.trajectory_id)
        if state is not None and not cancelled:
            assert state.worker_id == (order.target if done else order.source)

    @precondition(lambda self: self.in_hand)
    @rule(which=ANY, appended=TOKENS)
    def tools_finish(self, which: int, appended: int) -> None:
        name = sorted(self.in_hand)[which % len(self.in_hand)]
        self.send(ToolsFinished(name, self.open[name] - 1, appended))

    @precondition(lambda self: self.open)
    @rule()
    def progress(self) -> None:
        """All that can go on goes on by one step."""
        for name in sorted(self.in_hand):
            self.send(ToolsFinished(name, self.open[name] - 1, 1))
        for name, (worker, step) in list(self.running.items()):
            self.send(StepGenerated(name, worker, step, 10, 0, 5))

    @precondition(lambda self: self.open)
    @rule(which=ANY, reason=st.sampled_from(StopReason))
    def finish(self, which: int, reason: StopReason) -> None:
        self.send(TrajectoryFinished(list(self.open)[which % len(self.open)], reason))

    @precondition(lambda self: self.open)
    @rule(which=ANY, tokens=st.floats(min_value=0, max_value=1e6), after=st.integers(0, 3))
    def predict(self, which: int, tokens: float, after: int) -> None:
        name = list(self.open)[which % len(self.open)]
        self.send(LengthPredicted(name, Prediction(tokens, tokens, tokens, after, "outside")))

    @rule(which=ANY)
    def cancel(self, which: int) -> None:
        self.send(BatchCancelled(BatchId(f"b{which % (self.batches + 1)}"), StopReason.CANCELLED))

    @precondition(lambda self: self.known_workers)
    @rule(which=ANY, slots=st.integers(min_value=0, max_value=4), capacity=CAPACITIES)
    def worker_ready(self, which: int, slots: int, capacity: int | None) -> None:
        """A worker that comes back has no room for less than what it still owes interruptions for."""
        worker = self.known_workers[which % len(self.known_workers)]
        owed = sum(where == worker for where, _ in self.running.values())
        self.send(WorkerReady(worker, max(slots, owed), capacity))

    @precondition(lambda self: self.known_workers)
    @rule(which=ANY, will_restart=st.booleans())
    def worker_lost(self, which: int, will_restart: bool) -> None:
        worker = self.known_workers[which % len(self.known_workers)]
        self.send(WorkerLost(worker, "killed", will_restart))

    @precondition(lambda self: self.known_workers)
    @rule(which=ANY)
    def drain(self, which: int) -> None:
        self.send(WorkerDrainRequested(self.known_workers[which % len(self.known_workers)]))

    @precondition(lambda self: self.stop_ordered)
    @rule()
    def worker_stopped(self) -> None:
        self.send(WorkerStopped(self.stop_ordered[0]))

    @precondition(lambda self: len(self.known_workers) < 5)
    @rule(slots=st.integers(min_value=1, max_value=4))
    def add_worker(self, slots: int) -> None:
        self.send(WorkerAdded(WorkerSpec(self.plane.unused_worker_id(), 1, slots)))

    @rule(pause=st.booleans())
    def pause_or_resume(self, pause: bool) -> None:
        self.send(DispatchPaused() if pause else DispatchResumed())

    @precondition(lambda self: self.history)
    @rule(which=ANY)
    def say_again(self, which: int) -> None:
        """Something that was said before, late or twice; it may even be true again."""
        event = self.history[which % len(self.history)]
        if isinstance(event, BatchSubmitted | WorkerReady | WorkerAdded | PoolRequested):
            return  # re-submitted by the rules above where that is legal
        self.send(event)

    # ----------------------------------------------------------------------------------------- end

    def teardown(self) -> None:
        self.drive_to_the_end()
        self.replays_to_the_same_bytes()

    def drive_to_the_end(self) -> None:
        """Whatever happened, one healthy worker and a few steps are enough for everything open."""
        self.send(DispatchResumed())
        fresh = self.plane.unused_worker_id()
        self.send(WorkerAdded(WorkerSpec(fresh, 1, 2)))
        self.send(WorkerReady(fresh, 2, None))
        while self.open:
            before = len(self.open)
            for order in list(self.transfers.values()):
                self.send(TransferFailed(order.trajectory_id, order.source, order.target, "the end"))
            for name in [*self.ordered_to_end]:
                self.send(TrajectoryFinished(name, StopReason.CANCELLED))
            for name in sorted(self.in_hand):
                self.send(ToolsFinished(name, self.open[name] - 1, 1))
            for name, (worker, step) in list(self.running.items()):
                if worker in self.slots:
                    self.send(StepGenerated(name, worker, step, 10, 0, 5))
                    self.send(TrajectoryFinished(name, StopReason.COMPLETED))
                else:
                    self.send(GenerationInterrupted(name, worker, step, 1, InterruptReason.WORKER_LOST))
            self.state_is_consistent()
            assert len(self.open) < before or self.running
        state = self.plane.state
        assert (len(state.trajectories), len(state.batches), len(state.unplaced)) == (0, 0, 0)
        assert [(w.running, w.resident, w.waiting) for w in self.plane.worker_views() if w.resident] == []
        assert all(worker.running == 0 for worker in self.plane.worker_views())

    def replays_to_the_same_bytes(self) -> None:
        entries = [decode_entry(line) for line in self.lines]
        again = [encode_entry(e.seq, e.now, e.event, e.commands, e.ignored) for e in entries]
        assert again == self.lines
        report = replay(self.settings, entries, check_every=0)
        assert report.difference is None
        assert report.events == len(self.lines)


DataPlane.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
test_random_histories = DataPlane.TestCase
