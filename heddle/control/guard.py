"""The memory guard: what trajectories hold of a worker's KV cache stays below what it has.

An engine whose cache is too small for everybody between two steps evicts what is needed next, and computes
every prefix again and again. So only a working set that fits is let in, and stays in until its trajectories
end; who is outside waits in the *lot*, and nobody's prefix is given up to let somebody else have a turn:

- *admission* is in the order of the scheduler. Whoever does not fit waits in the lot instead of at the head
  of the line, where it would keep those from their slots whose prefixes are there;
- *return* from the lot is in the order of the scheduler too, batches by their shares, as soon as the first of
  it fits. Nobody overtakes it, of whatever size;
- *eviction* happens where contexts have outgrown the limit: of those in their tools the least urgent loses
  its claim, and goes to the lot when it wants its next step. A tool that takes longer than ``patience_s``
  costs its trajectory its claim as soon as somebody else wants it: to hold ``c`` tokens of a capacity ``C``
  idle wastes that share of the worker's throughput, to compute them anew wastes all of it for ``c`` over the
  prefill rate ``R``, so the two break even at ``C / R`` whatever ``c`` is, some tens of seconds.

No order here depends on the size of a context: that latency follows prompt size is a fault of smallest-first
admission which this avoids by construction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from heddle.control.state import ControlState, TrajectoryState, WorkerState
from heddle.types import TrajectoryPhase


@dataclass(frozen=True, slots=True)
class GuardRules:
    """How far memory is filled."""

    enabled: bool = True
    high_share: float = 0.9
    """Of the capacity, up to which claims are held. What running generations add needs room: without a
    reserve engines evict prefixes of those in their tools, and computing them anew cost up to a quarter of
    the makespan in simulations of long contexts; where memory was not short the reserve cost nothing."""
    low_share: float = 0.9
    """Up to which those in the lot are let in again; less, and whoever goes out comes back later."""
    patience_s: float = 30.0
    """In its tools, after which a trajectory's claim may go to another that wants to start."""


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

        A worker where nothing runs starts whatever is next: nothing else would ever change. Whoever lacks
        memory does not overtake those in the lot, but is ranked among them.
        """
        limit = worker.kv_limit_tokens
        if limit is None or trajectory.holds_kv or not worker.running:
            return True
        return not worker.lot and self._fits(trajectory, limit, worker, now)

    def hold_back(self, trajectory: TrajectoryState, worker: WorkerState) -> None:
        """From the line to the lot: it does not fit."""
        worker.queue.remove(trajectory.trajectory_id, trajectory.batch_id)
        self.park(trajectory, worker)

    def park(self, trajectory: TrajectoryState, worker: WorkerState) -> None:
        """It waits in the lot, at its rank."""
        trajectory.held_back = True
        worker.lot.push(trajectory.trajectory_id, trajectory.batch_id, trajectory.rank, trajectory.arrival)

    def relieve(self, worker: WorkerState) -> None:
        """Contexts have grown: below the limit again, as far as tools run there."""
        if worker.kv_limit_tokens is not None and worker.kv_tokens > worker.kv_limit_tokens:
            self._evict(_least_urgent(worker), worker, worker.kv_tokens - worker.kv_limit_tokens)

    def returning(self, worker: WorkerState, now: float) -> Iterator[TrajectoryState]:
        """Take those out of the lot who may queue again; the caller lets each queue at once."""
        while worker.lot:
            following = self._state.trajectories[worker.lot.peek().trajectory_id]
            if not self._may_return(following, worker, now):
                return
            worker.lot.pop(self._state.batches[following.batch_id].share, now)
            following.held_back = False
            self._state.hold_kv(following)
            yield following

    def _may_return(self, trajectory: TrajectoryState, worker: WorkerState, now: float) -> bool:
        if worker.kv_limit_tokens is None:
            return True
        if not worker.running and not worker.queue:
            # Nothing else would ever change: it goes on, with memory where there is any to be had.
            excess = worker.kv_tokens + worker.kv_needed(trajectory) - worker.kv_limit_tokens
            self._evict(_least_urgent(worker), worker, excess)
            return True
        lower = worker.kv_limit_tokens * self._rules.low_share / self._rules.high_share
        return self._fits(trajectory, lower, worker, now)

    def _fits(self, trajectory: TrajectoryState, limit: float, worker: WorkerState, now: float) -> bool:
        """Whether it fits below ``limit``, at the cost of tools that take too long if need be."""
        excess = worker.kv_tokens + worker.kv_needed(trajectory) - limit
        if excess <= 0:
            return True
        victims = self._long_in_tools(worker, now)
        if sum(worker.kv_freed(victim) for victim in victims) < excess:
            return False
        self._evict(victims, worker, excess)
        return True

    def _long_in_tools(self, worker: WorkerState, now: float) -> Sequence[TrajectoryState]:
        """Whose tools have taken too long, the longest first."""
        in_tool, patience_s = TrajectoryPhase.IN_TOOL, self._rules.patience_s
        # In one comprehension: under pressure every grant asks.
        found = [
            t for t in worker.holders.values() if t.phase is in_tool and now - t.phase_since >= patience_s
        ]
        return sorted(found, key=lambda t: (t.phase_since, t.arrival))

    def _evict(self, victims: Iterable[TrajectoryState], worker: WorkerState, excess_tokens: float) -> None:
        """Until so many tokens are given up, or all victims are."""
        for victim in victims:
            if excess_tokens <= 0:
                return
            excess_tokens -= worker.kv_freed(victim)
            self._state.release_kv(victim)
            victim.held_back = True


def _in_tools(worker: WorkerState) -> Iterator[TrajectoryState]:
    """Those that hold memory: no more than fit, and asked for under pressure only."""
    return (t for t in worker.holders.values() if t.phase is TrajectoryPhase.IN_TOOL)


def _least_urgent(worker: WorkerState) -> Sequence[TrajectoryState]:
    """In their tools, by their last ranks."""
    return sorted(_in_tools(worker), key=lambda t: (t.rank, -t.arrival))
