"""The agents of a simulation: what becomes of each trajectory between its grants.

Posts what live agent loops post, in their order: the step is generated, its tools start, its tools are over,
the run ends, its record is made. Grants, interruptions and cancellations come from the control plane.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from heddle.control.commands import Cancel, Generate, Preempt
from heddle.control.events import (
    Event,
    GenerationInterrupted,
    StepGenerated,
    ToolsFinished,
    ToolsStarted,
    TrajectoryEnding,
    TrajectoryFinished,
)
from heddle.simulate.agenda import Agenda
from heddle.simulate.journey import Journey
from heddle.simulate.options import SimulationOptions
from heddle.simulate.request import Request
from heddle.simulate.result import Outcome, Span
from heddle.simulate.tools import ToolPool, ToolTimes
from heddle.simulate.workers import Workers
from heddle.types import InterruptReason, StopReason, TrajectoryId, WorkerId


class Rollouts:
    """Owns all journeys."""

    def __init__(
        self,
        agenda: Agenda,
        options: SimulationOptions,
        workers: Workers,
        journeys: Mapping[TrajectoryId, Journey],
        post: Callable[[Event], None],
    ) -> None:
        self._agenda = agenda
        self._options = options
        self._workers = workers
        self._journeys = journeys
        self._post = post
        self._tools = ToolPool(agenda, options.tools)
        self.outcomes: dict[TrajectoryId, Outcome] = {}
        self.spans: list[Span] = []

    @property
    def open(self) -> int:
        """Trajectories that have not ended."""
        return len(self._journeys) - len(self.outcomes)

    def makespan_s(self) -> float:
        """From the first arrival to the last end, of those that have ended; 0.0 where none has."""
        began = min((outcome.arrived_at for outcome in self.outcomes.values()), default=0.0)
        return max((outcome.finished_at for outcome in self.outcomes.values()), default=0.0) - began

    def arrive(self, journeys: Iterable[Journey]) -> None:
        """They want their first slot from now on."""
        for journey in journeys:
            journey.waits_since = self._agenda.now

    # ------------------------------------------------------------------------------------- orders

    def grant(self, command: Generate) -> None:
        """It may generate: the request is on its way."""
        journey, now = self._journeys[command.trajectory_id], self._agenda.now
        journey.stop_waiting(now)
        journey.migrations += journey.worker_id not in (None, command.worker_id)
        journey.worker_id = command.worker_id
        journey.granted_at = now
        context = journey.context_tokens + journey.step_tokens
        journey.request = Request(
            trajectory_id=command.trajectory_id,
            group_id=journey.work.group_id,
            prompt_tokens=journey.shared_prompt_tokens,
            context_tokens=context,
            left_to_prefill=context,
            output_tokens=journey.step.output_tokens - journey.step_tokens,
            known_tokens=journey.known_tokens,
            since=now,
        )
        self._workers.send(command.worker_id, journey.request)

    def preempt(self, command: Preempt) -> None:
        """It is to give its slot back."""
        journey = self._journeys[command.trajectory_id]
        if journey.request is not None:
            journey.preempting = True
            self._workers.stop(command.worker_id, journey.request)

    def cancel(self, command: Cancel) -> None:
        """It is to end, as soon as its engine has let go."""
        journey = self._journeys[command.trajectory_id]
        if journey.finished_at is not None:
            return
        journey.cancel_reason = command.stop_reason
        if journey.request is not None and journey.worker_id is not None:
            self._workers.stop(journey.worker_id, journey.request)
        else:
            # From the agenda: the other orders of the same event come first.
            self._agenda.after(0.0, partial(self._end, journey, command.stop_reason))

    # ------------------------------------------------------------------------------------ engines

    def ended(self, request: Request) -> None:
        """An engine has let go of a request."""
        journey = self._journeys[request.trajectory_id]
        worker_id, kept = self._close_segment(journey, request)
        if journey.cancel_reason is not None:
            self._end(journey, journey.cancel_reason)
        elif journey.step_tokens == journey.step.output_tokens:
            self._generated(journey, worker_id, kept)
        else:
            self._interrupted(journey, worker_id, kept, InterruptReason.PREEMPTED)

    def lost(self, request: Request) -> None:
        """Its engine died. It asks to go on elsewhere after a pause, with the tokens that it has."""
        journey = self._journeys[request.trajectory_id]
        preempting = journey.preempting
        worker_id, kept = self._close_segment(journey, request)
        if journey.cancel_reason is not None:
            call = partial(self._end, journey, journey.cancel_reason)
        elif journey.step_tokens == journey.step.output_tokens:
            call = partial(self._generated, journey, worker_id, kept)
        elif preempting:
            call = partial(self._interrupted, journey, worker_id, kept, InterruptReason.PREEMPTED)
        else:
            journey.pauses_since = self._agenda.now
            call = partial(self._interrupted, journey, worker_id, kept, InterruptReason.WORKER_LOST)
            self._agenda.after(self._options.retry_s, call)
            return
        self._agenda.after(0.0, call)

    def _close_segment(self, journey: Journey, request: Request) -> tuple[WorkerId, int]:
        """Account for a request that is over. Returns its worker and the tokens that it leaves."""
        worker_id = journey.worker_id
        assert worker_id is not None, "who generates does so on a worker"
        kept = request.sampled_tokens if request.kept_tokens is None else request.kept_tokens
        journey.charge_generation(request, kept)
        journey.request = None
        self._workers.count_tokens(worker_id, kept)
        if self._options.record_spans:
            span = Span(worker_id, request.trajectory_id, journey.granted_at, self._agenda.now)
            self.spans.append(span)
        return worker_id, kept

    def _interrupted(self, journey: Journey, worker_id: WorkerId, kept: int, reason: InterruptReason) -> None:
        if journey.finished_at is not None or journey.cancel_reason is not None:
            return
        now = self._agenda.now
        journey.stop_pausing(now)
        journey.preempting = False
        journey.waits_since = now
        if reason is InterruptReason.PREEMPTED:
            journey.preemptions += 1
            journey.resumes = True
        name = journey.work.trajectory_id
        self._post(GenerationInterrupted(name, worker_id, journey.step_index, kept, reason))

    def _generated(self, journey: Journey, worker_id: WorkerId, kept: int) -> None:
        if journey.finished_at is not None or journey.cancel_reason is not None:
            return
        journey.preempting = False
        journey.pauses_since = self._agenda.now
        event = StepGenerated(
            trajectory_id=journey.work.trajectory_id,
            worker_id=worker_id,
            step_index=journey.step_index,
            prompt_tokens=journey.context_tokens,
            cached_tokens=journey.step_cached_tokens,
            output_tokens=kept,
        )
        journey.context_tokens += journey.step.output_tokens
        self._post(event)
        if self._options.overhead_s:
            self._agenda.after(self._options.overhead_s, partial(self._react, journey))
        else:
            self._react(journey)

    # -------------------------------------------------------------------------------------- tools

    def _react(self, journey: Journey) -> None:
        """The step is parsed: its tools run, or the next generation follows."""
        if journey.cancel_reason is not None:
            return
        journey.stop_pausing(self._agenda.now)
        step = journey.step
        done = partial(self._observe, journey)
        if step.tool_names:
            self._post(ToolsStarted(journey.work.trajectory_id, journey.step_index, step.tool_names))
            journey.tool = self._tools.run(step.tool_seconds or 0.0, done)
        elif step.tool_seconds:
            # Nobody was called: this time passes outside, and nothing limits it.
            self._agenda.after(step.tool_seconds, partial(done, ToolTimes(0.0, 0.0, step.tool_seconds)))
        else:
            done(ToolTimes(0.0, 0.0, 0.0))

    def _observe(self, journey: Journey, times: ToolTimes) -> None:
        if journey.cancel_reason is not None:
            return
        journey.tool = None
        journey.charge_tools(times)
        if journey.is_last_step:
            self._end(journey, StopReason.COMPLETED)
            return
        index = journey.step_index
        journey.step_index += 1
        journey.step_tokens = journey.step_cached_tokens = 0
        appended = journey.step.prompt_tokens
        journey.context_tokens += appended
        journey.waits_since = self._agenda.now
        outcomes = ("ok",) * len(journey.work.steps[index].tool_names)
        self._post(ToolsFinished(journey.work.trajectory_id, index, appended, outcomes))

    def _end(self, journey: Journey, reason: StopReason) -> None:
        if journey.finished_at is not None:
            return
        now = self._agenda.now
        if journey.tool is not None:  # it was cancelled in its tools
            journey.charge_tools(self._tools.cancel(journey.tool))
        journey.stop_waiting(now)
        journey.stop_pausing(now)
        journey.finished_at = now
        name = journey.work.trajectory_id
        self.outcomes[name] = journey.outcome(reason, now)
        self._post(TrajectoryEnding(name))
        self._post(TrajectoryFinished(name, reason))
