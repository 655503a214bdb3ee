"""Whether somebody who waits takes the slot of somebody who runs (the paper's Algorithm 1), and whose.

The next in line at a full worker takes the slot of the lowest running trajectory of its own batch if it
outranks it by strictly more than the scheduler's margin. The order to interrupt is all that happens at once:
the slot counts as taken until the victim's interruption is reported, so engines never see more requests than
slots, and one interruption is under way per worker, so a burst of arrivals cannot empty it.

A preemption that loses more than it gains is not ordered:
- where ranks follow from predictions, a guess interrupts nobody and is not interrupted;
- a generation under a grammar cannot go on from its middle and is never a victim;
- one that has hardly begun would have paid its start for nothing;
- one that is about to end frees its slot sooner by itself;
- a step is interrupted a bounded number of times.

O(slots of the worker) where somebody might be outranked, whatever waits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from heddle.control.ports import Scheduler
from heddle.control.state import ControlState, TrajectoryState, WorkerState

REST_TOKENS = 16
"""Less than this of a step left: an abort, the wait for the slot and a second start cost about as much."""

RATE_WEIGHT = 0.2
"""Of the newest generation in the running mean of a worker's seconds per token."""

RATE_TOKENS = 8
"""Shorter generations say little about the time per token."""


@dataclass(frozen=True, slots=True)
class PreemptionRules:
    """Bounds of every preemption."""

    enabled: bool = True
    max_per_step: int = 2
    min_run_s: float = 0.25
    """From its grant until a generation may be interrupted."""


class Preemption:
    """Chooses victims; changes nothing."""

    def __init__(self, state: ControlState, scheduler: Scheduler, rules: PreemptionRules) -> None:
        self._state = state
        self._scheduler = scheduler
        self._rules = rules

    def victim(self, worker: WorkerState, now: float) -> TrajectoryState | None:
        """Who has to make room for the next in line, if anybody."""
        margin = self._scheduler.margin
        if margin is None or not self._rules.enabled or worker.preempting is not None:
            return None
        if worker.running != worker.slots or not worker.queue:
            return None
        contender = worker.queue.peek()
        if contender.rank <= worker.lowest_rank + margin:
            return None
        worker.lowest_rank = min(running.rank for running in worker.generating.values())
        if contender.rank <= worker.lowest_rank + margin:
            return None
        if self._is_guess(self._state.trajectories[contender.trajectory_id]):
            return None
        lowest: TrajectoryState | None = None
        for running in worker.generating.values():
            if running.batch_id != contender.batch_id or contender.rank <= running.rank + margin:
                continue
            if (lowest is None or _is_lower(running, lowest)) and self._may_stop(running, worker, now):
                lowest = running
        return lowest

    def _is_guess(self, trajectory: TrajectoryState) -> bool:
        """Whether its rank follows from no prediction though it should."""
        return self._scheduler.predictive and trajectory.prediction is None

    def _may_stop(self, running: TrajectoryState, worker: WorkerState, now: float) -> bool:
        """Whether interrupting it loses nothing, or less than it gains."""
        return (
            running.preemptible
            and not self._is_guess(running)
            and running.cancel_reason is None
            and running.preemptions < self._rules.max_per_step
            and now - running.phase_since >= self._rules.min_run_s
            and _rest_of_step_tokens(running, worker, now) >= REST_TOKENS
        )


def observe_rate(worker: WorkerState, tokens: int, seconds: float) -> None:
    """A generation on ``worker`` took ``seconds`` for ``tokens``."""
    if tokens < RATE_TOKENS or seconds <= 0.0:
        return
    rate, known = seconds / tokens, worker.seconds_per_token
    worker.seconds_per_token = rate if known is None else known + RATE_WEIGHT * (rate - known)


def _rest_of_step_tokens(running: TrajectoryState, worker: WorkerState, now: float) -> float:
    """At most this much of its step is left, by what its limit and its prediction allow."""
    segment = 0.0
    if worker.seconds_per_token is not None:
        segment = (now - running.phase_since) / worker.seconds_per_token
    rest = math.inf
    if running.max_tokens_per_step is not None:
        rest = running.max_tokens_per_step - (running.generated_tokens - running.step_base_tokens)
    predicted = running.predicted_remaining_tokens
    if predicted is not None:
        rest = min(rest, predicted)
    return rest - segment


def _is_lower(one: TrajectoryState, other: TrajectoryState) -> bool:
    return (one.rank, -one.arrival) < (other.rank, -other.arrival)
