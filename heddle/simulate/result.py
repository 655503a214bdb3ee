"""What a simulation found: values only, so that tables, plots and JSON are made of the same."""

from __future__ import annotations

from dataclasses import dataclass

from heddle.types import GroupId, StopReason, TrajectoryId, WorkerId


@dataclass(frozen=True, slots=True)
class TimeParts:
    """Where the seconds of one trajectory went; they add up to its time from arrival to end (1e-6)."""

    queue_s: float = 0.0
    """Waiting for a slot, or for memory."""
    prefill_s: float = 0.0
    decode_base_s: float = 0.0
    """What its tokens would have taken alone on the same worker."""
    interference_s: float = 0.0
    """What other members of its running batches, and their prefills, added to that."""
    preemption_s: float = 0.0
    """Waiting after a preemption, and computing again what it had cost."""
    migration_s: float = 0.0
    """Waiting for a transfer that its tools did not hide."""
    tool_queue_s: float = 0.0
    tool_cold_s: float = 0.0
    tool_run_s: float = 0.0
    overhead_s: float = 0.0
    """Between steps: the coordinator, the connection."""

    @property
    def total_s(self) -> float:
        """Sum of the parts."""
        return (
            self.queue_s
            + self.prefill_s
            + self.decode_base_s
            + self.interference_s
            + self.preemption_s
            + self.migration_s
            + self.tool_queue_s
            + self.tool_cold_s
            + self.tool_run_s
            + self.overhead_s
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """One trajectory at its end."""

    trajectory_id: TrajectoryId
    group_id: GroupId
    arrived_at: float
    finished_at: float
    steps: int
    generated_tokens: int
    computed_tokens: int
    """Prompt and context tokens that were prefilled for it, again included."""
    recomputed_tokens: int
    """Of these, those that some worker had computed before: lost to eviction, moves and crashes."""
    preemptions: int
    migrations: int
    """Generations on another worker than the one before, for whatever reason."""
    parts: TimeParts
    stop_reason: StopReason = StopReason.COMPLETED
    """Another one where it was cancelled, or no worker was left."""


@dataclass(frozen=True, slots=True)
class Span:
    """One trajectory held one slot without a break: for charts."""

    worker_id: WorkerId
    trajectory_id: TrajectoryId
    began_at: float
    ended_at: float


@dataclass(frozen=True, slots=True)
class WorkerUse:
    """One worker over the whole simulation."""

    worker_id: WorkerId
    tp_degree: int
    slots: int
    busy_s: float
    """With at least one generation."""
    generated_tokens: int
    began_at: float | None = 0.0
    """When it got its GPUs; ``None`` where it never did."""
    ended_at: float | None = None
    """When it gave them back; ``None``: it was there to the end."""


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """One configuration on one workload with one seed."""

    configuration: str
    workload: str
    seed: int
    makespan_s: float
    """From the first arrival to the last end."""
    outcomes: tuple[Outcome, ...]
    """In the workload's order."""
    workers: tuple[WorkerUse, ...]
    spans: tuple[Span, ...]
    """Empty where they were not asked for."""
    events: int
    """Handled by the control plane."""
    notes: tuple[str, ...] = ()

    @property
    def longest(self) -> Outcome:
        """The trajectory with most sampled tokens; the first of equals."""
        return max(self.outcomes, key=lambda outcome: outcome.generated_tokens)

    @property
    def tokens_per_s(self) -> float:
        """Sampled tokens of all trajectories per second of the makespan; 0.0 for an empty one."""
        total = sum(outcome.generated_tokens for outcome in self.outcomes)
        return total / self.makespan_s if self.makespan_s > 0 else 0.0

    def time_to_share(self, share: float) -> float:
        """Seconds from the first arrival until this share (0 to 1) of all trajectories had ended."""
        if not self.outcomes:
            return 0.0
        ends = sorted(outcome.finished_at for outcome in self.outcomes)
        began = min(outcome.arrived_at for outcome in self.outcomes)
        return ends[max(0, -(-round(share * len(ends) * 1e9) // 10**9) - 1)] - began
