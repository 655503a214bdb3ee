"""Mean of what earlier trajectories still generated after the same number of steps.

The weakest predictor that is not a constant: it knows how far a trajectory is, not what it does. Memory is
bounded: a window of recent endings per step count, and the paths of open trajectories until they end.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence

from heddle.predict.passive import Passive
from heddle.types import Prediction, TrajectoryId, TrajectoryView

WINDOW = 512
"""Endings remembered per step count: enough for a steady 0.9 quantile, few enough to follow a drift."""

MAX_STEPS = 256
"""Step counts told apart; longer trajectories share the last."""


class MeanByStep(Passive):
    """Mean and 0.1 and 0.9 quantiles of the remaining tokens, given how many steps are done.

    ``remaining_tokens`` is the mean rather than the median; the interval is widened to contain it.
    """

    name = "mean_by_step"

    def __init__(self) -> None:
        self._remaining: dict[int, _Window] = {}
        self._paths: dict[TrajectoryId, list[tuple[int, int]]] = {}

    def predict(self, trajectories: Sequence[TrajectoryView]) -> Sequence[Prediction | None]:
        """``None`` until some trajectory that came as far has finished."""
        return [self._predict(trajectory) for trajectory in trajectories]

    def _predict(self, trajectory: TrajectoryView) -> Prediction | None:
        window = self._remaining.get(min(trajectory.steps_done, MAX_STEPS))
        if window is None:
            return None
        mean = window.mean
        return Prediction(
            remaining_tokens=mean,
            low_tokens=min(mean, window.quantile(0.1)),
            high_tokens=max(mean, window.quantile(0.9)),
            made_after_step=trajectory.steps_done,
            model=self.name,
        )

    def observe_step(self, trajectory: TrajectoryView) -> None:
        """Remember how many tokens it had after this many steps."""
        path = self._paths.setdefault(trajectory.trajectory_id, [])
        path.append((trajectory.steps_done, trajectory.generated_tokens))

    def observe_finished(self, trajectory: TrajectoryView) -> None:
        """Now it is known what remained after each of its steps."""
        path = self._paths.pop(trajectory.trajectory_id, [])
        total = trajectory.generated_tokens
        if len(path) == trajectory.steps_done:
            # Its whole life was seen, so the estimate before the first step may learn from it too.
            path.insert(0, (0, 0))
        for steps_done, generated in path:
            window = self._remaining.setdefault(min(steps_done, MAX_STEPS), _Window())
            window.add(total - generated)

    def forget(self, trajectory_id: TrajectoryId) -> None:
        """Its length is not its own, so nothing is learned from it."""
        self._paths.pop(trajectory_id, None)


class _Window:
    """The last ``WINDOW`` values, in order of age and in order of size."""

    __slots__ = ("_by_age", "_by_size", "_sum")

    def __init__(self) -> None:
        self._by_age: deque[int] = deque()
        self._by_size: list[int] = []
        self._sum = 0

    def add(self, value: int) -> None:
        self._by_age.append(value)
        insort(self._by_size, value)
        self._sum += value
        if len(self._by_age) > WINDOW:
            oldest = self._by_age.popleft()
            del self._by_size[bisect_left(self._by_size, oldest)]
            self._sum -= oldest

    @property
    def mean(self) -> float:
        return self._sum / len(self._by_age)

    def quantile(self, q: float) -> float:
        """Nearest rank."""
        return float(self._by_size[round(q * (len(self._by_size) - 1))])
