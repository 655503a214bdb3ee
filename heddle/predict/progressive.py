"""``progressive``: all evidence there is, weighed by what it proved to be worth, with calibrated intervals.

The estimate after a step is the mean of what remained after as many steps, corrected by a regression on the
evidence of the sources; its interval comes from the errors of earlier estimates at such a step. All of it is
learned online and per workload, from every trajectory that reaches its own end, so it follows the policy.

Each source alone is a predictor, too: this one with a single source.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

from pydantic import TypeAdapter, ValidationError

from heddle.errors import ConfigError
from heddle.predict.open_paths import OpenPaths
from heddle.predict.point import Point
from heddle.predict.sources import Source
from heddle.predict.workload import Workload
from heddle.types import Json, JsonWritable, Prediction, TrajectoryId, TrajectoryView, Trust
from heddle.validation import in_words

MOST_WORKLOADS = 32
"""Told apart; the one longest without an ending goes first."""

_STATE: TypeAdapter[dict[str, Json]] = TypeAdapter(dict[str, Json])


class Progressive:
    """Implements ``LengthPredictor`` for any set of sources."""

    def __init__(self, name: str, make_sources: Callable[[], Sequence[Source]]) -> None:
        self.name = name
        self._make_sources = make_sources
        self._workloads: OrderedDict[str, Workload] = OrderedDict()
        self._paths = OpenPaths()

    def predict(self, trajectories: Sequence[TrajectoryView]) -> Sequence[Prediction | None]:
        """``None`` until a trajectory of the same workload has finished."""
        if len({trajectory.workload for trajectory in trajectories}) == 1:
            return self._predict_alike(trajectories)
        found: list[Prediction | None] = [None] * len(trajectories)
        by_workload: dict[str, list[int]] = {}
        for index, trajectory in enumerate(trajectories):
            by_workload.setdefault(trajectory.workload, []).append(index)
        for indices in by_workload.values():
            alike = self._predict_alike([trajectories[index] for index in indices])
            for index, prediction in zip(indices, alike, strict=True):
                found[index] = prediction
        return found

    def refine(self, trajectory: TrajectoryView, estimate: Prediction) -> Prediction | None:
        """Take the estimate for evidence about the step after which it was made, however late it comes."""
        point = self._paths.at(trajectory.trajectory_id, estimate.made_after_step)
        latest = self._paths.latest(trajectory.trajectory_id)
        if point is None or latest is None:
            return None
        workload = self._workload(trajectory.workload)
        workload.observe_estimate(point, estimate)
        return self._estimate([latest], workload, [trajectory.max_tokens])[0]

    def observe_step(self, trajectory: TrajectoryView) -> None:
        self._workload(trajectory.workload).observe_step(Point.of(trajectory))

    def observe_finished(self, trajectory: TrajectoryView) -> None:
        path = self._paths.pop(trajectory.trajectory_id)
        self._workload(trajectory.workload).observe_ended(path, trajectory)
        self._workloads.move_to_end(trajectory.workload)

    def forget(self, trajectory_id: TrajectoryId) -> None:
        self._paths.pop(trajectory_id)
        for workload in self._workloads.values():
            workload.forget(trajectory_id)

    @property
    def waiting(self) -> bool:
        return any(workload.waiting for workload in self._workloads.values())

    def settle(self) -> None:
        for workload in self._workloads.values():
            if workload.waiting:
                workload.settle()
                return

    def trust(self) -> Trust | None:
        """The least, by tail recall, of the workloads that run now; ``None`` where one was never judged."""
        running = [w.trust() for w in self._workloads.values() if w.open_trajectories]
        judged = [trust for trust in running if trust is not None]
        if not judged or len(judged) < len(running):
            return None
        return min(judged, key=lambda trust: trust.tail_recall)

    def save(self) -> JsonWritable:
        return {name: workload.save() for name, workload in self._workloads.items()}

    def restore(self, state: JsonWritable) -> None:
        restored: OrderedDict[str, Workload] = OrderedDict()
        try:
            for name, saved in _STATE.validate_python(state).items():
                restored[name] = Workload(self._make_sources())
                restored[name].restore(saved)
        except ValidationError as exc:
            raise ConfigError(
                f"the saved state is none of the predictor {self.name!r}: {in_words(exc)}"
            ) from exc
        self._workloads = restored

    def _predict_alike(self, trajectories: Sequence[TrajectoryView]) -> Sequence[Prediction | None]:
        points = [Point.of(trajectory) for trajectory in trajectories]
        workload = self._workload(trajectories[0].workload)
        return self._estimate(points, workload, [trajectory.max_tokens for trajectory in trajectories])

    def _estimate(
        self, points: Sequence[Point], workload: Workload, most: Sequence[int]
    ) -> Sequence[Prediction | None]:
        estimates = workload.estimate(points, self._paths.first_left(points))
        self._paths.add(points, estimates)
        return estimates.predictions(points, most, self.name)

    def _workload(self, name: str) -> Workload:
        workload = self._workloads.get(name)
        if workload is None:
            workload = self._workloads[name] = Workload(self._make_sources())
            if len(self._workloads) > MOST_WORKLOADS:
                self._workloads.popitem(last=False)
        return workload
