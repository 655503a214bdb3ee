"""The memory guard: what trajectories hold of a worker's KV cache stays below what it has.

An engine whose cache is too small for everybody between two steps evicts what is needed next, and computes
every prefix again and again. So the guard decides who is to lose it, before the engine has to:

- *eviction*: under pressure those in their tools lose their claim, who has been there longest first, then
  those that wait, from the end of their line. Whoever lost it is held back when it wants its next step;
- *admission* stays the scheduler's order. Memory is made for whoever is next, of whatever size;
- *resumption* of those held back is by best fit, when there is room again below the limit by some distance.
  Whoever has waited for ``aged_after_s`` goes first, room is made for it, and nobody overtakes it.

Neither who is evicted nor who is admitted depends on the size of a context, and age ends every wait: that
latency follows prompt size is a fault of smallest-first admission which this avoids by construction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from heddle.control.state import ControlState, TrajectoryState, WorkerState
from heddle.types import TrajectoryPhase


@dataclass(frozen=True, slots=True)
class GuardRules:
    """How far memory is filled."""

    enabled: bool = True
    high_share: float = 0.9
    """Of the capacity, where eviction begins; the rest is for what running generations add."""
    low_share: float = 0.8
    """Up to which those held back are let in again, so that nobody goes in and out."""
    aged_after_s: float = 10.0
    """Wait after which nobody held back overtakes any more. Observed with 30 s: the waits of 120 trajectories
    followed their prompts' sizes with a correlation of 0.1 to 0.5, with 10 s of -0.1 to 0.1, at no cost."""


class MemoryGuard:
    """Keeps each worker's ``kv_tokens`` below its limit where that is possible."""

    def __init__(self, state: ControlState, rules: GuardRules) -> None:
        self._state = state
        self._rules = rules

    def watch(self, worker: WorkerState) -> None:
        """The worker came up and has said how much it holds."""
        capacity = worker.prefix_capacity_tokens
        guarded = self._rules.enabled and capacity is not None and capacity > 0
        worker.kv_limit_tokens = self._rules.high_share * (capacity or 0) if guarded else None

    def admits(self, trajectory: TrajectoryState, worker: WorkerState, now: float) -> bool:
        """Whether the next in line may start; makes room for it if need be.

        A worker where nothing runs starts whatever is next: nothing else would ever change.
        """
        if worker.kv_limit_tokens is None or trajectory.holds_kv or not worker.running:
            return True
        needed = trajectory.context_tokens
        return self._evict_for(needed, _in_tools, worker) or self._evict_for(needed, _in_line, worker)

    def relieve(self, worker: WorkerState) -> None:
        """Contexts have grown: below the limit again, as far as tools run there."""
        self._evict_for(0, _in_tools, worker)

    def returning(self, worker: WorkerState, now: float) -> Iterator[TrajectoryState]:
        """Take those out of the parked who may queue again; the caller lets each queue at once."""
        while worker.parked:
            trajectory = self._next_returning(worker, now)
            if trajectory is None:
                return
            worker.parked.remove(trajectory.trajectory_id)
            trajectory.held_back = False
            self._state.hold_kv(trajectory)
            yield trajectory

    def _next_returning(self, worker: WorkerState, now: float) -> TrajectoryState | None:
        known = self._state.trajectories
        oldest = known[worker.parked.oldest()]
        idle = not worker.running and not worker.queue
        if worker.kv_limit_tokens is None or idle:
            return oldest
        if now - oldest.queued_at >= self._rules.aged_after_s:
            # Not at the cost of those in line: two aged ones would take turns in evicting each other.
            return oldest if self._evict_for(oldest.context_tokens, _in_tools, worker) else None
        room = worker.kv_limit_tokens * self._rules.low_share / self._rules.high_share - worker.kv_tokens
        fitting = worker.parked.best_fit(room)
        return None if fitting is None else known[fitting]

    def _evict_for(self, needed_tokens: int, victims: _Victims, worker: WorkerState) -> bool:
        """Evict until ``needed_tokens`` more fit; whether they do."""
        limit = worker.kv_limit_tokens
        if limit is None or worker.kv_tokens + needed_tokens <= limit:
            return True
        for victim in victims(worker):
            self._evict(victim, worker)
            if worker.kv_tokens + needed_tokens <= limit:
                return True
        return False

    def _evict(self, trajectory: TrajectoryState, worker: WorkerState) -> None:
        self._state.release_kv(trajectory)
        trajectory.held_back = True
        if trajectory.phase is TrajectoryPhase.QUEUED:
            worker.queue.remove(trajectory.trajectory_id, trajectory.batch_id)
            worker.parked.push(trajectory.trajectory_id, trajectory.context_tokens, trajectory.arrival)


_Victims: TypeAlias = Callable[[WorkerState], list[TrajectoryState]]
"""Residents of a worker that may lose their claim, in the order of eviction. Linear in those that hold
memory, which are no more than fit, and asked for under pressure only."""


def _in_tools(worker: WorkerState) -> list[TrajectoryState]:
    found = [t for t in worker.holders.values() if t.phase is TrajectoryPhase.IN_TOOL]
    return sorted(found, key=lambda t: (t.phase_since, t.arrival))


def _in_line(worker: WorkerState) -> list[TrajectoryState]:
    found = [t for t in worker.holders.values() if t.trajectory_id in worker.queue]
    return sorted(found, key=lambda t: (t.rank, -t.arrival))
