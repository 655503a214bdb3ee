"""A batch while it is open: who still runs, and who waits to hear of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from heddle.agent.loop import TrajectoryRun
from heddle.coordinator.broadcast import Pulse
from heddle.store.ports import BatchCounts, BatchState
from heddle.types import BatchId, TrajectoryId

ETA_MINIMUM_SHARE = 0.05
"""Below this share of finished trajectories an ETA would be noise."""


@dataclass(slots=True)
class OpenBatch:
    """Live state of one batch; what is finished lies in the store."""

    batch_id: BatchId
    total: int
    created_at: float
    cancelled: bool = False
    runs: dict[TrajectoryId, TrajectoryRun] = field(default_factory=dict)
    ended_by_status: Counter[str] = field(default_factory=Counter)
    """Kept here as well as in the store, so that asking for it waits for nothing."""
    ended_tokens: int = 0
    """Sampled by those that ended."""
    expiry: asyncio.Task[None] | None = None
    """Ends what is open when the batch's time is over, where that is limited."""
    changed: Pulse = field(default_factory=Pulse)
    """Fires whenever a trajectory of the batch became visible, and when the batch is over."""

    @property
    def state(self) -> BatchState:
        """As the store has it."""
        return BatchState(self.batch_id, self.total, self.created_at, self.cancelled, None)

    @property
    def counts(self) -> BatchCounts:
        """Of the trajectories that ended."""
        return BatchCounts(dict(self.ended_by_status), self.ended_tokens)

    def count(self, counts: BatchCounts) -> None:
        """These have ended."""
        self.ended_by_status.update(counts.by_status)
        self.ended_tokens += counts.sampled_tokens

    @property
    def finished(self) -> int:
        return self.ended_by_status.total()

    @property
    def sampled_tokens(self) -> int:
        """Of the open trajectories."""
        return sum(run.sampled_tokens for run in self.runs.values())

    def eta_s(self, now: float) -> float | None:
        """Seconds to go if trajectories keep finishing at the mean rate so far; a rough guess."""
        if self.finished < max(1.0, ETA_MINIMUM_SHARE * self.total):
            return None
        return (now - self.created_at) * (self.total - self.finished) / self.finished


@dataclass(frozen=True, slots=True)
class EndedBatch:
    """What is asked of a batch that is over."""

    state: BatchState
    counts: BatchCounts
