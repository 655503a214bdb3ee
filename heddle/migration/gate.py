"""What a move changes for the two workers that it concerns, and whether that pays.

Both are drained with the trajectory where it is, and with it over there. The later of the two ends is what
counts, so that a move which only shifts the end from one worker to the other gains nothing. It pays if it
saves more than ``HYSTERESIS`` times its cost and a share of what is left. So the target never ends later than
the later one of both did, and who was moved is not moved back while nothing else has changed.

Lengths are hedged by trust: without any, all count as equal. One transfer at a time touches a worker (or
waits to), so that two estimates never count on the same gap; a trajectory moves at most ``MOST_MOVES`` times.

Looking at a worker costs some hundred microseconds with a hundred residents, so what was seen is kept: one
worker is looked at anew with every proposal, in turn, and those that a move is judged by unless they were
lately.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from heddle.control.ports import MigrationProposal
from heddle.migration.options import MigrationOptions, MovePrice
from heddle.planning.drains import Drain, Weights, cap_of
from heddle.planning.profile import required
from heddle.planning.trust import earned
from heddle.types import TrajectoryPhase, TrajectoryView, WorkerId, WorkerView

HYSTERESIS = 2.0
"""Times its cost that a move must save: costs are certain, savings are estimates."""
LEAST_SHARE = 0.002
"""Of the later end that it must save besides; one trajectory of hundreds is no more than that."""
MOST_MOVES = 4
LATELY = 8
"""Proposals within which a worker is not looked at again, unless one of them was for it."""
NEVER = -LATELY


class Gate:
    """Keeps the drains of all workers, as they were when they were looked at last."""

    def __init__(self, planner: str, options: MigrationOptions) -> None:
        """Raises ``ConfigError`` where ``options`` lack a profile."""
        profile = required(options.profile, f"migration {planner}")
        self._options = options
        self._degrees = {degree.tp_degree: degree for degree in profile.degrees}
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
        self.trust = 0.0
        """Earned when the workers were renewed last."""

    def reset(self, trajectories: Sequence[TrajectoryView], workers: Sequence[WorkerView]) -> None:
        """Forget what was seen of the workers."""
        self._drains = {}
        self._told = {}
        self._turn = deque(worker.worker_id for worker in workers)
        known = [t.predicted_remaining_tokens for t in trajectories]
        self._mean_tokens = _mean([tokens for tokens in known if tokens is not None])

    def prices(self, workers: Sequence[WorkerView]) -> bool:
        """Whether there are two, and the profile knows all of their degrees."""
        return len(workers) > 1 and all(worker.tp_degree in self._degrees for worker in workers)

    def renew(self, workers: Sequence[WorkerView]) -> None:
        """Look at those never seen, and at one of the others in turn."""
        self.trust = earned(self._options.trust())
        self._asked += 1
        for worker in workers:
            if worker.worker_id not in self._drains:
                self._look(worker)
        if self._turn:
            self._turn.rotate(-1)
            following = next((w for w in workers if w.worker_id == self._turn[0]), None)
            if following is not None:
                self._look(following)
        predicted = sum(count for _, count in self._told.values())
        if predicted:
            self._mean_tokens = sum(tokens for tokens, _ in self._told.values()) / predicted

    def seconds(self, worker: WorkerView) -> float:
        """Until it has drained, as seen last."""
        return self._drains[worker.worker_id].seconds

    def last_s(self) -> float:
        """Until the last worker has."""
        return max(drain.seconds for drain in self._drains.values())

    def hedged(self, predicted: float | None) -> float:
        """From what was predicted to the mean of all; 1.0 where nothing ever was."""
        if self._mean_tokens is None:
            return 1.0 if predicted is None else predicted
        if predicted is None:
            return self._mean_tokens
        return self.trust * predicted + (1 - self.trust) * self._mean_tokens

    def admits(self, trajectory: TrajectoryView, source: WorkerView, target: WorkerView) -> bool:
        """Whether it may go there at all, whatever that saves."""
        return (
            target.worker_id != source.worker_id
            and not source.transfers
            and not target.transfers
            and trajectory.moves < MOST_MOVES
            and (
                target.kv_limit_tokens is None
                or target.kv_tokens + trajectory.context_tokens <= target.kv_limit_tokens
            )
        )

    def best(
        self, trajectory: TrajectoryView, source: WorkerView, targets: Iterable[WorkerView]
    ) -> MigrationProposal | None:
        """The move to the one of ``targets`` with which the pair is done soonest, if that pays."""
        length = self.hedged(trajectory.predicted_remaining_tokens)
        if length <= 0:
            return None
        leaving = self._look_again(source)
        best: tuple[float, WorkerView] | None = None
        for target in targets:
            price = self._options.price(trajectory, target)
            saved_s = None if price is None else self._saved_s(length, price, leaving, target)
            if saved_s is not None and (best is None or saved_s > best[0]):
                best = saved_s, target
        if best is None:
            return None
        target = best[1]
        self._look_again(target)
        price = self._options.price(trajectory, target)
        if price is None or self._saved_s(length, price, leaving, target) is None:
            return None
        for concerned in (source, target):  # what was seen of them holds no longer
            self._looked_at[concerned.worker_id] = NEVER
        return MigrationProposal(
            trajectory.trajectory_id, source.worker_id, target.worker_id, price.means, length
        )

    def _saved_s(self, length: float, price: MovePrice, leaving: Drain, target: WorkerView) -> float | None:
        """By how much the pair ends sooner; ``None`` where that does not pay."""
        joining = self._drains[target.worker_id]
        now_s = max(leaving.seconds, joining.seconds)
        then_s = max(leaving.without_member(length), joining.with_member(length) + price.seconds)
        saved_s = now_s - then_s
        return saved_s if saved_s > HYSTERESIS * price.seconds + LEAST_SHARE * now_s else None

    def _look_again(self, worker: WorkerView) -> Drain:
        if self._asked - self._looked_at[worker.worker_id] < LATELY:
            return self._drains[worker.worker_id]
        return self._look(worker)

    def _look(self, worker: WorkerView) -> Drain:
        going = [t for t in worker.residents.values() if t.phase is not TrajectoryPhase.ENDING]
        known = [t.predicted_remaining_tokens for t in going]
        told = [tokens for tokens in known if tokens is not None]
        self._told[worker.worker_id] = sum(told), len(told)
        lengths = [self.hedged(tokens) for tokens in known]
        context = sum(t.context_tokens for t in going) / len(going) if going else 0.0
        drain = Drain(lengths, self._weights_for(worker, len(going)), cap_of(worker, context))
        self._drains[worker.worker_id] = drain
        self._looked_at[worker.worker_id] = self._asked
        return drain

    def _weights_for(self, worker: WorkerView, members: int) -> Weights:
        """Long enough for the members, one more, and any cap of the worker."""
        needed = max(members + 2, worker.slots + 1)
        known = self._weights.get(worker.tp_degree)
        if known is None or known.most < needed:
            known = self._weights[worker.tp_degree] = Weights(self._degrees[worker.tp_degree], 2 * needed)
        return known


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
