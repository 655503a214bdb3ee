"""What follows from the events of batches and trajectories.

A handler either applies its event as a whole or ignores it as a whole, with a reason: an event that is late
(its trajectory went on or ended) or foreign must not leave a trace but a count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from pydantic import TypeAdapter, ValidationError

from heddle.control.commands import Command
from heddle.control.dispatch import Dispatcher
from heddle.control.events import (
    BatchCancelled,
    BatchSubmitted,
    GenerationInterrupted,
    LengthPredicted,
    PredictorRestored,
    StepGenerated,
    ToolsFinished,
    ToolsStarted,
    TrajectoryEnding,
    TrajectoryFinished,
    TrajectorySpec,
)
from heddle.control.moves import Moves
from heddle.control.ports import LengthPredictor
from heddle.control.preemption import observe_rate
from heddle.control.reshapes import Reshapes
from heddle.control.shares import Share
from heddle.control.state import BatchState, ControlState, IgnoreReason, TrajectoryState
from heddle.errors import ConfigError
from heddle.types import (
    BatchId,
    InterruptReason,
    Json,
    StepView,
    StopReason,
    TrajectoryPhase,
    TrajectoryStatus,
)
from heddle.validation import in_words

NO_WORKER_LEFT = "every worker has failed for good and none is left to start"
"""Detail of the orders that end trajectories which no worker can ever serve."""


class TrajectoryEvents:
    """Handlers of batch and trajectory events, each returning the commands that follow."""

    def __init__(
        self,
        state: ControlState,
        dispatcher: Dispatcher,
        predictor: LengthPredictor,
        moves: Moves,
        reshapes: Reshapes,
    ) -> None:
        self._state = state
        self._dispatcher = dispatcher
        self._predictor = predictor
        self._moves = moves
        self._reshapes = reshapes

    # ------------------------------------------------------------------------------------- batches

    def batch_submitted(self, event: BatchSubmitted, now: float) -> list[Command]:
        """Register, place and queue its trajectories; where no worker can ever come, end them."""
        state = self._state
        if event.batch_id in state.batches:
            return state.ignore(IgnoreReason.DUPLICATE_BATCH)
        fresh = {
            spec.trajectory_id: spec
            for spec in event.trajectories
            if spec.trajectory_id not in state.trajectories
        }
        for _ in range(len(event.trajectories) - len(fresh)):
            state.ignore(IgnoreReason.DUPLICATE_TRAJECTORY)
        if not fresh:
            return []
        share = Share(event.weight, event.deadline_s, submitted_at=now)
        batch = BatchState(event.batch_id, share)
        state.batches[event.batch_id] = batch
        hopeless = state.hopeless
        commands = self._reshapes.batch_comes(now)
        for spec in fresh.values():
            state.add_trajectory(_new_trajectory(spec, event.batch_id, now), batch)
        self._predict([state.trajectories[name] for name in fresh])
        self._dispatcher.prepare()
        for spec in fresh.values():
            trajectory = state.trajectories[spec.trajectory_id]
            if spec.between:
                state.set_phase(trajectory, TrajectoryPhase.BETWEEN, now)
            else:
                self._dispatcher.admit(trajectory, now)
            if hopeless:
                commands += self._dispatcher.cancel(trajectory, StopReason.ENGINE_FAILED, NO_WORKER_LEFT)
        self._moves.prepare()
        return commands + self._dispatcher.serve_all(now)

    def batch_cancelled(self, event: BatchCancelled, now: float) -> list[Command]:
        """Order the end of every open trajectory that was not ordered to end already.

        Who was next in line may have been one of them: others move up.
        """
        batch = self._state.batches.get(event.batch_id)
        if batch is None:
            return self._state.ignore(IgnoreReason.UNKNOWN_BATCH)
        timed_out = event.reason is StopReason.TIMED_OUT
        detail = f"batch {event.batch_id} " + ("has run out of time" if timed_out else "was cancelled")
        commands = [
            command
            for trajectory in batch.open.values()
            for command in self._cancel(trajectory, event.reason, detail)
        ]
        return commands + self._dispatcher.serve_all(now)

    # -------------------------------------------------------------------------------- trajectories

    def step_generated(self, event: StepGenerated, now: float) -> list[Command]:
        """The step is complete: count it, learn from it, and give its slot to the next."""
        trajectory = self._state.trajectories.get(event.trajectory_id)
        misfit = _misfit(trajectory, event)
        if trajectory is None or misfit is not None:
            return self._state.ignore(misfit or IgnoreReason.UNKNOWN_TRAJECTORY)
        worker = self._state.workers[event.worker_id]
        observe_rate(worker, event.output_tokens, now - trajectory.phase_since)
        self._dispatcher.end_generation(trajectory, worker)
        self._state.set_phase(trajectory, TrajectoryPhase.BETWEEN, now)
        self._state.grow(trajectory, event.forced_tokens + event.output_tokens, event.output_tokens)
        trajectory.steps_done += 1
        trajectory.last_step = StepView(trajectory.generated_tokens - trajectory.step_base_tokens)
        trajectory.step_base_tokens = trajectory.generated_tokens
        trajectory.preemptions = 0
        self._predictor.observe_step(trajectory)
        self._predict((trajectory,))
        self._dispatcher.guard.relieve(worker)
        return self._dispatcher.serve(worker, now)

    def generation_interrupted(self, event: GenerationInterrupted, now: float) -> list[Command]:
        """Keep what was generated; the step goes on as soon as a slot is free, before later arrivals."""
        trajectory = self._state.trajectories.get(event.trajectory_id)
        misfit = _misfit(trajectory, event)
        if trajectory is None or misfit is not None:
            return self._state.ignore(misfit or IgnoreReason.UNKNOWN_TRAJECTORY)
        worker = self._state.workers[event.worker_id]
        observe_rate(worker, event.output_tokens, now - trajectory.phase_since)
        self._dispatcher.end_generation(trajectory, worker)
        self._state.grow(trajectory, event.output_tokens, event.output_tokens)
        trajectory.preemptions += event.reason is InterruptReason.PREEMPTED
        if trajectory.bound_for is not None:
            self._dispatcher.rehome(trajectory)
        self._dispatcher.wait(trajectory, now)
        commands = self._dispatcher.serve(worker, now)
        if trajectory.worker_id not in (None, worker.worker_id):
            commands += self._dispatcher.serve_home(trajectory, now)
        return commands

    def tools_started(self, event: ToolsStarted, now: float) -> list[Command]:
        """Its tools run, which is the time to move it if that pays."""
        trajectory = self._state.trajectories.get(event.trajectory_id)
        if trajectory is None:
            return self._state.ignore(IgnoreReason.UNKNOWN_TRAJECTORY)
        if trajectory.phase is not TrajectoryPhase.BETWEEN:
            return self._state.ignore(IgnoreReason.WRONG_PHASE)
        if event.step_index != trajectory.steps_done - 1:
            return self._state.ignore(IgnoreReason.WRONG_STEP)
        self._state.set_phase(trajectory, TrajectoryPhase.IN_TOOL, now)
        trajectory.tool_names = event.tool_names
        trajectory.last_step = replace(trajectory.last_step, tool_names=event.tool_names)
        self._predict((trajectory,))
        home = None if trajectory.worker_id is None else self._state.workers[trajectory.worker_id]
        commands = self._moves.consider(trajectory, now)
        if home is None:
            return commands
        # What it holds may go now, or has gone with it: somebody who lacked memory may start.
        self._dispatcher.guard.relieve(home)
        return commands + self._dispatcher.serve(home, now)

    def tools_finished(self, event: ToolsFinished, now: float) -> list[Command]:
        """The observation is appended: it queues for its next step."""
        trajectory = self._state.trajectories.get(event.trajectory_id)
        if trajectory is None:
            return self._state.ignore(IgnoreReason.UNKNOWN_TRAJECTORY)
        if trajectory.phase not in (TrajectoryPhase.BETWEEN, TrajectoryPhase.IN_TOOL):
            return self._state.ignore(IgnoreReason.WRONG_PHASE)
        if event.step_index != trajectory.steps_done - 1:
            return self._state.ignore(IgnoreReason.WRONG_STEP)
        commands = self._moves.withdraw(trajectory)
        self._state.grow(trajectory, event.appended_tokens)
        self._end_tools(trajectory, event, now)
        left = trajectory.worker_id
        self._dispatcher.rehome(trajectory)
        self._dispatcher.admit(trajectory, now)
        if left is not None and left != trajectory.worker_id:
            commands += self._dispatcher.serve(self._state.workers[left], now)
        return commands + self._dispatcher.serve_home(trajectory, now)

    def length_predicted(self, event: LengthPredicted, now: float) -> list[Command]:
        """Take over what the predictor makes of an estimate from outside; it may change who is next."""
        trajectory = self._state.trajectories.get(event.trajectory_id)
        if trajectory is None:
            return self._state.ignore(IgnoreReason.UNKNOWN_TRAJECTORY)
        made_after = event.prediction.made_after_step
        if made_after > trajectory.steps_done:
            return self._state.ignore(IgnoreReason.WRONG_STEP)
        refined = self._predictor.refine(trajectory, event.prediction)
        if refined is None:
            return self._state.ignore(IgnoreReason.STALE_PREDICTION)
        trajectory.prediction = refined
        trajectory.predicted_at_tokens = trajectory.step_base_tokens
        self._dispatcher.rank_anew(trajectory, now)
        return self._dispatcher.serve_home(trajectory, now)

    def trajectory_ending(self, event: TrajectoryEnding, now: float) -> list[Command]:
        """Its slot and its place in a queue go to others while its record is made."""
        state = self._state
        trajectory = state.trajectories.get(event.trajectory_id)
        if trajectory is None:
            return state.ignore(IgnoreReason.UNKNOWN_TRAJECTORY)
        if trajectory.phase is TrajectoryPhase.ENDING:
            return state.ignore(IgnoreReason.NO_CHANGE)
        home = None if trajectory.worker_id is None else state.workers[trajectory.worker_id]
        commands = self._moves.withdraw(trajectory)
        if trajectory.phase is TrajectoryPhase.GENERATING and home is not None:
            self._dispatcher.end_generation(trajectory, home)
        else:
            state.leave_queue(trajectory)
        trajectory.tool_names = ()
        state.set_phase(trajectory, TrajectoryPhase.ENDING, now)
        state.release_kv(trajectory)
        self._moves.forget(trajectory)
        return commands if home is None else commands + self._dispatcher.serve(home, now)

    def trajectory_finished(self, event: TrajectoryFinished, now: float) -> list[Command]:
        """Release whatever it holds, wherever it stands, and forget it."""
        state = self._state
        trajectory = state.trajectories.get(event.trajectory_id)
        if trajectory is None:
            return state.ignore(IgnoreReason.UNKNOWN_TRAJECTORY)
        home = None if trajectory.worker_id is None else state.workers[trajectory.worker_id]
        commands = self._moves.withdraw(trajectory)
        if trajectory.phase is TrajectoryPhase.GENERATING and home is not None:
            self._dispatcher.end_generation(trajectory, home)
        else:
            state.leave_queue(trajectory)
        if _reached_own_end(event.stop_reason):
            self._predictor.observe_finished(trajectory)
            self._reshapes.observe(trajectory)
        else:
            self._predictor.forget(trajectory.trajectory_id)
        self._moves.forget(trajectory)
        state.drop_trajectory(trajectory, event.stop_reason, now)
        if home is not None:
            commands += self._dispatcher.serve(home, now)
        return commands + self._reshapes.trajectory_finished(now)

    def _cancel(self, trajectory: TrajectoryState, reason: StopReason, detail: str) -> list[Command]:
        return self._moves.withdraw(trajectory) + self._dispatcher.cancel(trajectory, reason, detail)

    def predictor_restored(self, event: PredictorRestored) -> list[Command]:
        """Go on from what an earlier process learned. Raises ``ConfigError`` for what cannot be read."""
        self._predictor.restore(_parsed(event.state))
        return []

    def _end_tools(self, trajectory: TrajectoryState, event: ToolsFinished, now: float) -> None:
        """Note what its tools took and said, and estimate anew from that."""
        took = now - trajectory.phase_since if trajectory.phase is TrajectoryPhase.IN_TOOL else 0.0
        trajectory.tool_names = ()
        trajectory.tool_seconds += took
        trajectory.last_step = replace(
            trajectory.last_step,
            tool_outcomes=event.outcomes,
            tool_seconds=took,
            appended_tokens=event.appended_tokens,
        )
        self._predict((trajectory,))

    def _predict(self, trajectories: Sequence[TrajectoryState]) -> None:
        """A predictor that knows nothing does not erase what somebody else knew."""
        predictions = self._predictor.predict(trajectories)
        for trajectory, prediction in zip(trajectories, predictions, strict=True):
            if prediction is not None:
                trajectory.prediction = prediction
                trajectory.predicted_at_tokens = trajectory.generated_tokens


def _parsed(state: str) -> Json:
    try:
        return _json().validate_json(state)
    except ValidationError as exc:
        raise ConfigError(f"the saved state of the predictor is not JSON: {in_words(exc)}") from exc


def _new_trajectory(spec: TrajectorySpec, batch_id: BatchId, now: float) -> TrajectoryState:
    return TrajectoryState(
        trajectory_id=spec.trajectory_id,
        batch_id=batch_id,
        group_id=spec.group_id,
        submitted_at=now,
        max_tokens=spec.max_tokens,
        context_tokens=spec.context_tokens,
        generated_tokens=spec.generated_tokens,
        steps_done=spec.steps_done,
        queued_at=now,
        phase_since=now,
        max_tokens_per_step=spec.max_tokens_per_step,
        known_total_tokens=spec.known_total_tokens,
        preemptible=spec.preemptible,
        admitted_at=now,
        step_base_tokens=spec.generated_tokens,
        workload=spec.workload,
        prompt_key=spec.prompt_key,
        prompt_tokens=spec.prompt_tokens,
    )


def _misfit(
    trajectory: TrajectoryState | None, event: StepGenerated | GenerationInterrupted
) -> IgnoreReason | None:
    """Why this cannot be the end of the generation that runs for ``trajectory``."""
    if trajectory is None:
        return IgnoreReason.UNKNOWN_TRAJECTORY
    if trajectory.phase is not TrajectoryPhase.GENERATING:
        return IgnoreReason.WRONG_PHASE
    if event.worker_id != trajectory.worker_id:
        return IgnoreReason.WRONG_WORKER
    if event.step_index != trajectory.steps_done:
        return IgnoreReason.WRONG_STEP
    return None


def _reached_own_end(reason: StopReason) -> bool:
    """Whether its length is its own: neither somebody outside nor the clock cut it short."""
    own = (TrajectoryStatus.COMPLETED, TrajectoryStatus.TRUNCATED)
    return reason.status in own and reason is not StopReason.TIMED_OUT


@cache
def _json() -> TypeAdapter[Json]:
    """Made when a state is there to be read."""
    return TypeAdapter(Json)
