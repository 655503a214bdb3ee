"""One trajectory on its way through a simulation: where it stands, what it did, where its time went."""

from __future__ import annotations

from dataclasses import dataclass, field

from heddle.simulate.request import Request
from heddle.simulate.result import Outcome, TimeParts
from heddle.simulate.tools import ToolRun, ToolTimes
from heddle.simulate.workload import WorkStep, WorkTrajectory
from heddle.types import BatchId, StopReason, WorkerId


@dataclass(slots=True)
class _Seconds:
    """The growing form of :class:`~heddle.simulate.result.TimeParts`."""

    queue: float = 0.0
    prefill: float = 0.0
    decode_base: float = 0.0
    interference: float = 0.0
    preemption: float = 0.0
    tool_queue: float = 0.0
    tool_cold: float = 0.0
    tool_run: float = 0.0
    overhead: float = 0.0


@dataclass(slots=True, eq=False)
class Journey:
    """From arrival to end. Between two control events every second is accounted for exactly once."""

    work: WorkTrajectory
    batch_id: BatchId
    shared_prompt_tokens: int
    """Of its first prompt, in common with its group and worth sharing; 0: none."""
    context_tokens: int
    """Prompt plus everything generated and observed; not what the current step has sampled."""
    step_index: int = 0
    step_tokens: int = 0
    """Sampled of the current step, in segments that are over."""
    step_cached_tokens: int = 0
    known_tokens: int = 0
    """Longest prefix that any worker has computed."""
    generated_tokens: int = 0
    computed_tokens: int = 0
    recomputed_tokens: int = 0
    preemptions: int = 0
    migrations: int = 0
    worker_id: WorkerId | None = None
    """Where it generates now, or did last."""
    request: Request | None = None
    """While a slot is held for it."""
    granted_at: float = 0.0
    waits_since: float | None = None
    """While it wants a slot."""
    pauses_since: float | None = None
    """While it is between engine and tools."""
    preempting: bool = False
    """It was told to give its slot back."""
    resumes: bool = False
    """Its next segment continues one that was preempted."""
    tool: ToolRun | None = None
    cancel_reason: StopReason | None = None
    finished_at: float | None = None
    seconds: _Seconds = field(default_factory=_Seconds)

    @property
    def step(self) -> WorkStep:
        """The step that it is at."""
        return self.work.steps[self.step_index]

    @property
    def is_last_step(self) -> bool:
        """Whether nothing follows this step."""
        return self.step_index == len(self.work.steps) - 1

    def stop_waiting(self, now: float) -> None:
        """It got a slot, or wants none any more."""
        if self.waits_since is not None:
            waited, self.waits_since = now - self.waits_since, None
            if self.resumes:
                self.seconds.preemption += waited
            else:
                self.seconds.queue += waited

    def stop_pausing(self, now: float) -> None:
        """The pause between engine and tools, or after a lost worker, is over."""
        if self.pauses_since is not None:
            self.seconds.overhead += now - self.pauses_since
            self.pauses_since = None

    def charge_generation(self, request: Request, kept_tokens: int) -> None:
        """A segment is over; ``kept_tokens`` of it count."""
        seconds = self.seconds
        seconds.queue += request.queue_s
        if self.resumes:
            seconds.preemption += request.prefill_s
        else:
            seconds.prefill += request.prefill_s
        base = min(request.base_s, request.decode_s)
        seconds.decode_base += base
        seconds.interference += request.decode_s - base
        if self.cancel_reason is None:
            seconds.preemption += request.stopping_s
        else:
            seconds.overhead += request.stopping_s
        self.computed_tokens += request.computed_tokens
        self.recomputed_tokens += request.recomputed_tokens
        self.generated_tokens += kept_tokens
        begun = self.context_tokens + self.step_tokens
        reached = begun + kept_tokens - 1 if kept_tokens else begun - request.left_to_prefill
        self.known_tokens = max(self.known_tokens, request.known_tokens, reached)
        if not self.step_cached_tokens:
            self.step_cached_tokens = request.cached_tokens
        self.step_tokens += kept_tokens
        self.resumes = False

    def charge_tools(self, times: ToolTimes) -> None:
        """Its tools are over."""
        self.seconds.tool_queue += times.queue_s
        self.seconds.tool_cold += times.cold_s
        self.seconds.tool_run += times.run_s

    def outcome(self, stop_reason: StopReason, now: float) -> Outcome:
        """It is over."""
        s = self.seconds
        return Outcome(
            trajectory_id=self.work.trajectory_id,
            group_id=self.work.group_id,
            arrived_at=self.work.arrival_s,
            finished_at=now,
            steps=self.step_index + (self.step_tokens > 0),
            generated_tokens=self.generated_tokens,
            computed_tokens=self.computed_tokens,
            recomputed_tokens=self.recomputed_tokens,
            preemptions=self.preemptions,
            migrations=self.migrations,
            parts=TimeParts(
                queue_s=s.queue,
                prefill_s=s.prefill,
                decode_base_s=s.decode_base,
                interference_s=s.interference,
                preemption_s=s.preemption,
                tool_queue_s=s.tool_queue,
                tool_cold_s=s.tool_cold,
                tool_run_s=s.tool_run,
                overhead_s=s.overhead,
            ),
            stop_reason=stop_reason,
        )
