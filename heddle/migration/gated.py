"""Moves that pay: the pair of workers must be done sooner by more than the move costs.

For a trajectory in its tools: its worker and a target are drained with it where it is, and with it over
there. The later of the two ends is what counts, so that a move which only shifts the end from one worker to
the other gains nothing. It is proposed if that saves more than ``HYSTERESIS`` times its cost and a share of
what is left, to the target where it saves most. Only workers that end about last are relieved: anywhere else
a move changes nothing that anybody waits for.

Lengths are hedged by trust: without any, all count as equal, and moves even out numbers. One transfer at a
time touches a worker (or waits to), so that two estimates never count on the same gap; a trajectory moves at
most ``MOST_MOVES`` times.

Looking at a worker costs some hundred microseconds with a hundred residents, so what was seen is kept: one
worker is looked at anew with every proposal, in turn, and those that a move is judged by unless they were
lately.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from heapq import nsmallest

from heddle.control.ports import MigrationProposal
from heddle.errors import ConfigError
from heddle.migration.options import MigrationOptions
from heddle.planning.drains import Drain, Weights, cap_of
from heddle.planning.trust import earned
from heddle.types import TrajectoryId, TrajectoryPhase, TrajectoryView, WorkerId, WorkerView

HYSTERESIS = 2.0
"""Times its cost that a move must save: costs are certain, savings are estimates."""
LEAST_SHARE = 0.002
"""Of the later end that it must save besides; one trajectory of hundreds is no more than that."""
CRITICAL_SHARE = 0.9
"""Of the last worker's time to drain; who ends sooner is left alone."""
MOST_MOVES = 4
LATELY = 8
"""Proposals within which a worker is not looked at again."""
TARGETS = 6
"""Those that end soonest are judged as targets."""


class GatedMigration:
    """Proposes at most one move for each trajectory that enters its tools."""

    name = "gated"

    def __init__(self, options: MigrationOptions) -> None:
        """Raises ``ConfigError`` where ``options`` lack a profile."""
        if options.profile is None:
            raise ConfigError("migration gated needs a profile of the workers' step times")
        self._options = options
        self._degrees = {degree.tp_degree: degree for degree in options.profile.degrees}
        self._weights: dict[int, Weights] = {}
        self._drains: dict[WorkerId, Drain] = {}
        self._turn: deque[WorkerId] = deque()
        self._asked = 0
        self._looked_at: dict[WorkerId, int] = {}
        """``_asked`` at that time."""
        self._told: dict[WorkerId, tuple[float, int]] = {}
        """Of each worker's residents the predicted tokens in all, and how many were predicted."""
        self._mean_tokens: float | None = None
        """Predicted for an open trajectory."""

    def prepare(self, trajectories: Sequence[TrajectoryView], workers: Sequence[WorkerView]) -> None:
        """Forget what was seen of the workers."""
        self._drains = {}
        self._told = {}
        self._turn = deque(worker.worker_id for worker in workers)
        known = [t.predicted_remaining_tokens for t in trajectories]
        self._mean_tokens = _mean([tokens for tokens in known if tokens is not None])

    def propose(
        self, in_tool: Sequence[TrajectoryView], workers: Sequence[WorkerView], now: float
    ) -> Iterable[MigrationProposal]:
        """See the module."""
        if len(workers) < 2 or not all(worker.tp_degree in self._degrees for worker in workers):
            return
        trust = earned(self._options.trust())
        by_id = {worker.worker_id: worker for worker in workers}
        self._renew(workers, by_id, trust)
        for trajectory in in_tool:
            source = None if trajectory.worker_id is None else by_id.get(trajectory.worker_id)
            if source is not None and trajectory.moves < MOST_MOVES and not source.transfers:
                proposal = self._best_move(trajectory, source, workers, trust)
                if proposal is not None:
                    yield proposal

    def forget(self, trajectory_id: TrajectoryId) -> None:
        """Nothing is remembered of single trajectories."""

    def _best_move(
        self, trajectory: TrajectoryView, source: WorkerView, workers: Sequence[WorkerView], trust: float
    ) -> MigrationProposal | None:
        length = self._hedged(trajectory.predicted_remaining_tokens, trust)
        last_s = max(drain.seconds for drain in self._drains.values())
        if length <= 0 or self._drains[source.worker_id].seconds < CRITICAL_SHARE * last_s:
            return None
        leaving = self._look_again(source, trust)
        best: tuple[float, WorkerView] | None = None
        for target in self._targets(trajectory, source, workers):
            saved_s = self._saved_s(trajectory, length, leaving, target)
            if saved_s is not None and (best is None or saved_s > best[0]):
                best = saved_s, target
        if best is None:
            return None
        target = best[1]
        self._look_again(target, trust)
        if self._saved_s(trajectory, length, leaving, target) is None:
            return None
        return MigrationProposal(
            trajectory.trajectory_id, source.worker_id, target.worker_id, self._options.means, length
        )

    def _saved_s(
        self, trajectory: TrajectoryView, length: float, leaving: Drain, target: WorkerView
    ) -> float | None:
        """By how much the pair ends sooner; ``None`` where that does not pay."""
        cost_s = self._options.seconds(trajectory.context_tokens, target)
        if cost_s is None:
            return None
        joining = self._drains[target.worker_id]
        now_s = max(leaving.seconds, joining.seconds)
        then_s = max(leaving.without_member(length), joining.with_member(length) + cost_s)
        saved_s = now_s - then_s
        return saved_s if saved_s > HYSTERESIS * cost_s + LEAST_SHARE * now_s else None

    def _targets(
        self, trajectory: TrajectoryView, source: WorkerView, workers: Sequence[WorkerView]
    ) -> Sequence[WorkerView]:
        """Those that end soonest and could take it."""
        possible = [
            worker
            for worker in workers
            if worker.worker_id != source.worker_id
            and not worker.transfers
            and (
                worker.kv_limit_tokens is None
                or worker.kv_tokens + trajectory.context_tokens <= worker.kv_limit_tokens
            )
        ]
        return nsmallest(TARGETS, possible, key=lambda w: (self._drains[w.worker_id].seconds, w.worker_id))

    def _renew(self, workers: Sequence[WorkerView], by_id: dict[WorkerId, WorkerView], trust: float) -> None:
        """Look at those never seen, and at one of the others in turn."""
        self._asked += 1
        for worker in workers:
            if worker.worker_id not in self._drains:
                self._look(worker, trust)
        if self._turn:
            self._turn.rotate(-1)
            following = by_id.get(self._turn[0])
            if following is not None:
                self._look(following, trust)
        predicted = sum(count for _, count in self._told.values())
        if predicted:
            self._mean_tokens = sum(tokens for tokens, _ in self._told.values()) / predicted

    def _look_again(self, worker: WorkerView, trust: float) -> Drain:
        if self._asked - self._looked_at[worker.worker_id] < LATELY:
            return self._drains[worker.worker_id]
        return self._look(worker, trust)

    def _look(self, worker: WorkerView, trust: float) -> Drain:
        going = [t for t in worker.residents.values() if t.phase is not TrajectoryPhase.ENDING]
        known = [t.predicted_remaining_tokens for t in going]
        told = [tokens for tokens in known if tokens is not None]
        self._told[worker.worker_id] = sum(told), len(told)
        lengths = [self._hedged(tokens, trust) for tokens in known]
        context = sum(t.context_tokens for t in going) / len(going) if going else 0.0
        drain = Drain(lengths, self._weights_for(worker, len(going)), cap_of(worker, context))
        self._drains[worker.worker_id] = drain
        self._looked_at[worker.worker_id] = self._asked
        return drain

    def _hedged(self, predicted: float | None, trust: float) -> float:
        """From what was predicted to the mean of all; 1.0 where nothing ever was."""
        if self._mean_tokens is None:
            return 1.0 if predicted is None else predicted
        return self._mean_tokens if predicted is None else trust * predicted + (1 - trust) * self._mean_tokens

    def _weights_for(self, worker: WorkerView, members: int) -> Weights:
        """Long enough for the members, one more, and any cap of the worker."""
        needed = max(members + 2, worker.slots + 1)
        known = self._weights.get(worker.tp_degree)
        if known is None or known.most < needed:
            known = self._weights[worker.tp_degree] = Weights(self._degrees[worker.tp_degree], 2 * needed)
        return known


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
