"""What came of a batch: one pass over its finished records, then a table or a JSON document."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from rich.table import Table

from heddle.records import Trajectory


@dataclass(frozen=True, slots=True)
class RewardSummary:
    """Rewards of one environment; ``mean`` is None where no trajectory was judged."""

    mean: float | None
    judged: int
    trajectories: int


@dataclass(frozen=True, slots=True)
class BatchSummary:
    """The results of a batch. Durations are seconds; shares are between 0 and 1."""

    batch_id: str
    trajectories: int
    by_status: Mapping[str, int]
    by_stop_reason: Mapping[str, int]
    steps_median: float
    steps_max: int
    sampled_tokens: int
    prompt_tokens: int
    """Sent to the engines as prompts, over all steps: every step sends the whole conversation."""
    cached_tokens: int
    """Of the prompt tokens, those that an engine found in its cache."""
    tool_calls: int
    tool_share: float
    """Share of the trajectories with at least one tool call that was run."""
    makespan_s: float
    """From the acceptance of the batch to the end of its last trajectory."""
    tokens_per_s: float
    """Sampled tokens over the makespan."""
    rewards: Mapping[str, RewardSummary]
    engine_restarts: int


@dataclass(slots=True)
class Tally:
    """Collects finished trajectories one at a time, so that a batch need not fit in memory."""

    by_status: Counter[str] = field(default_factory=Counter)
    by_stop_reason: Counter[str] = field(default_factory=Counter)
    steps: list[int] = field(default_factory=list)
    sampled_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tool_calls: int = 0
    with_tools: int = 0
    rewards: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    environments: Counter[str] = field(default_factory=Counter)

    def add(self, trajectory: Trajectory) -> None:
        """Count one finished trajectory."""
        ran = sum(1 for step in trajectory.steps for call in step.tool_calls if call.outcome != "invalid")
        self.by_status[trajectory.status.value] += 1
        self.by_stop_reason[trajectory.stop_reason.value] += 1
        self.steps.append(len(trajectory.steps))
        self.sampled_tokens += trajectory.sampled_tokens
        self.prompt_tokens += sum(step.prompt_tokens for step in trajectory.steps)
        self.cached_tokens += sum(step.cached_tokens for step in trajectory.steps)
        self.tool_calls += ran
        self.with_tools += ran > 0
        self.environments[trajectory.environment] += 1
        if trajectory.reward is not None:
            self.rewards[trajectory.environment].append(trajectory.reward)

    def summary(self, batch_id: str, *, makespan_s: float, engine_restarts: int) -> BatchSummary:
        """The results so far."""
        count = len(self.steps)
        return BatchSummary(
            batch_id=batch_id,
            trajectories=count,
            by_status=dict(self.by_status.most_common()),
            by_stop_reason=dict(self.by_stop_reason.most_common()),
            steps_median=statistics.median(self.steps) if self.steps else 0.0,
            steps_max=max(self.steps, default=0),
            sampled_tokens=self.sampled_tokens,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            tool_calls=self.tool_calls,
            tool_share=self.with_tools / count if count else 0.0,
            makespan_s=makespan_s,
            tokens_per_s=self.sampled_tokens / makespan_s if makespan_s > 0 else 0.0,
            rewards={name: self._reward(name) for name in sorted(self.environments)},
            engine_restarts=engine_restarts,
        )

    def _reward(self, environment: str) -> RewardSummary:
        values = self.rewards.get(environment, [])
        mean = statistics.fmean(values) if values else None
        return RewardSummary(mean, judged=len(values), trajectories=self.environments[environment])


def results_table(summary: BatchSummary) -> Table:
    """The table that ends ``heddle run``."""
    table = Table(title=f"Batch {summary.batch_id}", title_justify="left", show_header=False)
    table.add_column("what", style="bold", no_wrap=True)
    table.add_column("value", overflow="fold")
    table.add_row("trajectories", f"{summary.trajectories}: {_counts(summary.by_status)}")
    table.add_row("stop reasons", _counts(summary.by_stop_reason))
    table.add_row("steps", f"median {summary.steps_median:g}, max {summary.steps_max}")
    table.add_row(
        "tokens",
        f"{summary.sampled_tokens:,} sampled; {summary.prompt_tokens:,} prompt, "
        f"{summary.cached_tokens:,} of them cached",
    )
    table.add_row(
        "tool calls",
        f"{summary.tool_calls:,}; {summary.tool_share:.0%} of the trajectories made at least one",
    )
    table.add_row("makespan", f"{summary.makespan_s:.1f} s, {summary.tokens_per_s:.1f} sampled tokens/s")
    for name, reward in summary.rewards.items():
        table.add_row(f"reward, {name}", _reward_text(reward))
    table.add_row("engine restarts", str(summary.engine_restarts))
    return table


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"


def _reward_text(reward: RewardSummary) -> str:
    if reward.mean is None:
        return f"not judged (n = {reward.trajectories})"
    unjudged = reward.trajectories - reward.judged
    return f"mean {reward.mean:.3f} (n = {reward.judged}{f', {unjudged} not judged' if unjudged else ''})"
