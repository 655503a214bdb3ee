"""What is known of one workload, and how it is learned: means, evidence, weights, errors, trust."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise

import numpy as np
from pydantic import TypeAdapter

from heddle.errors import ConfigError
from heddle.predict.buckets import Floats, Ints, places_of
from heddle.predict.cohorts import Cohorts
from heddle.predict.conformal import KEPT_AT_ALARM, Calibrator
from heddle.predict.expectation import Expectation
from heddle.predict.levels import Levels
from heddle.predict.open_paths import Estimated, Estimates
from heddle.predict.outlived import Outlived
from heddle.predict.point import Point
from heddle.predict.regression import OnlineRidge
from heddle.predict.sources import Context, Ended, Source
from heddle.predict.trust import Judgement, TrustWindow
from heddle.types import Json, JsonWritable, Prediction, TrajectoryId, TrajectoryView, Trust

LEARNED_AT_ONCE = 2
"""Endings learned from in one turn: well below a millisecond."""

RELEARNED_SHARE = 0.05
"""What the weights learned so far count for after an alarm."""


@dataclass(frozen=True, slots=True)
class _State:
    levels: Levels
    expectation: Json
    weights: list[list[list[float]]]
    errors: Json
    trust: Json
    sources: dict[str, Json]


_STATE: TypeAdapter[_State] = TypeAdapter(_State)


@dataclass(frozen=True, slots=True)
class _Ending:
    """A trajectory at its own end; at least one point."""

    path: Sequence[Estimated]
    total_tokens: int
    total_steps: int
    tool_seconds: float
    remaining: Sequence[int] = field(init=False)
    """Tokens that remained at each point."""
    log_remaining: Floats = field(init=False)
    """Logarithms of 1 + those."""

    def __post_init__(self) -> None:
        remaining = [self.total_tokens - e.point.generated_tokens for e in self.path]
        object.__setattr__(self, "remaining", remaining)
        object.__setattr__(self, "log_remaining", np.log1p(remaining))

    def judgement(self) -> Judgement | None:
        """What was said on the way, beside what came; ``None`` where nothing was said."""
        pairs = zip(self.path, self.log_remaining.tolist(), strict=True)
        said = [(e, left) for e, left in pairs if not math.isnan(e.median)]
        if not said:
            return None
        held = [e.low <= left <= e.high for e, left in said]
        judged = next((e for e, _ in said if e.point.steps_done == 1), said[0][0])
        predicted = judged.point.generated_tokens + math.expm1(judged.median)
        return Judgement(predicted, float(self.total_tokens), sum(held) / len(held))


class Workload:
    """Estimates and learns; see :class:`~heddle.predict.progressive.Progressive`."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources = sorted(sources, key=lambda source: source.absolute)
        self._levels = Levels()
        self._tables = self._levels.table()
        self._ridge = OnlineRidge(np.array([weight for source in sources for weight in source.prior]))
        ends = np.cumsum([0, *(len(source.prior) for source in sources)]).tolist()
        self._columns = [(s, slice(*ends)) for s, ends in zip(sources, pairwise(ends), strict=True)]
        """Each source and its part of a row."""
        self._absolute = slice(sum(len(source.prior) for source in sources if not source.absolute), None)
        """The last columns: the mean is yet to be taken off."""
        self._expectation = Expectation()
        self._calibrator = Calibrator()
        self._trust = TrustWindow()
        self._outlived = Outlived()
        self._cohorts: Cohorts[_Ending] = Cohorts()
        self._ready: deque[_Ending] = deque()
        """Endings whose turn has come."""
        self._learned = False
        """Whether a whole cohort was learned from."""

    def estimate(self, points: Sequence[Point], first_left: Floats) -> Estimates:
        """What is expected to remain at each point.

        ``first_left``: tokens that would remain, had the first estimate of the trajectory been right; NaN
        where this is the first.
        """
        for point in points:
            self._cohorts.begin(point.trajectory_id)
        buckets, stages, cells = places_of([point.steps_done for point in points])
        levels, steps, tool_seconds = self._tables[:, buckets]
        context = self._context(buckets, levels)
        rows = np.zeros((len(points), self._ridge.columns))
        for source, columns in self._columns:
            source.fill(points, context, rows[:, columns])
        known = self._levels.total_count > 0.0
        if known:
            deviations, excess = self._ridge.predict(self._deviations(rows, levels), stages).T
            expected = levels + deviations
        else:
            deviations = excess = np.zeros(len(points))
            expected = np.full(len(points), np.nan)
        quantiles = expected + self._calibrator.offsets()[:, buckets]
        if known:
            for point, most in zip(points, quantiles[-1].tolist(), strict=True):
                self._outlived.told(point, most)
        return Estimates(
            known=known,
            buckets=buckets,
            rows=rows,
            quantiles=quantiles,
            tokens=self._expectation.estimate(cells, deviations, excess, first_left),
            steps=steps,
            tool_seconds=tool_seconds,
        )

    def observe_step(self, point: Point) -> None:
        """A step of an open trajectory was generated."""
        if not self._learned:
            return
        buckets = places_of([point.steps_done]).buckets
        context = self._context(buckets, self._tables[0, buckets])
        for source in self._sources:
            source.observe_step(point, context)
        if self._outlived.stepped(point):
            self._calibrator.drop_all_but(0)
            self._start_afresh(0)

    def observe_estimate(self, point: Point, estimate: Prediction) -> None:
        """A model outside of the control plane estimated it."""
        for source in self._sources:
            source.observe_estimate(point, estimate)

    def forget(self, trajectory_id: TrajectoryId) -> None:
        """It ended in another way than its own."""
        for source in self._sources:
            source.forget(trajectory_id)
        self._outlived.forget(trajectory_id)
        self._ready += self._cohorts.forget(trajectory_id)

    def observe_ended(self, path: Sequence[Estimated], trajectory: TrajectoryView) -> None:
        """A trajectory reached its own end; ``path`` is what was estimated on its way.

        What was estimated after its last step does not count: it had ended then, which only its loop knew.
        """
        total = trajectory.generated_tokens
        path = [estimated for estimated in path if estimated.point.generated_tokens < total]
        if not path:
            self.forget(trajectory.trajectory_id)
            return
        ending = _Ending(path, total, trajectory.steps_done, trajectory.tool_seconds)
        if not self._learned:
            places = places_of([e.point.steps_done for e in path])
            self._learn_levels(ending, places.buckets.tolist(), places.cells.tolist())
            self._tables = self._levels.table()
        surprise = math.log1p(total) - self._levels.total_mean if self._learned else 0.0
        for source in self._sources:
            source.observe_ended(path[-1].point, surprise)
        self._outlived.ended(path[-1].point)
        self._ready += self._cohorts.end(trajectory.trajectory_id, ending)

    @property
    def waiting(self) -> bool:
        """Whether there are endings whose turn has come."""
        return bool(self._ready)

    def settle(self) -> None:
        """Learn from a few of the endings whose turn has come."""
        chunk = [self._ready.popleft() for _ in range(min(LEARNED_AT_ONCE, len(self._ready)))]
        if chunk:
            self._learn(chunk)

    @property
    def open_trajectories(self) -> int:
        """Estimated and not yet ended."""
        return self._cohorts.open_trajectories

    def trust(self) -> Trust | None:
        """Over the latest endings."""
        return self._trust.trust()

    def save(self) -> JsonWritable:
        """Everything but the open trajectories."""
        return {
            "levels": asdict(self._levels),
            "expectation": self._expectation.save(),
            "weights": self._ridge.save(),
            "errors": self._calibrator.save(),
            "trust": self._trust.save(),
            "sources": {source.name: source.save() for source in self._sources},
        }

    def restore(self, state: JsonWritable) -> None:
        """Raises ``pydantic.ValidationError``, and ``ConfigError`` for the state of other sources."""
        saved = _STATE.validate_python(state)
        if not self._ridge.restore(saved.weights) or set(saved.sources) != {s.name for s in self._sources}:
            raise ConfigError(f"the saved state is of other sources: {', '.join(saved.sources)}")
        self._levels, self._learned = saved.levels, saved.levels.total_count > 0
        self._tables = self._levels.table()
        self._expectation.restore(saved.expectation)
        self._calibrator.restore(saved.errors)
        self._trust.restore(saved.trust)
        for source in self._sources:
            source.restore(saved.sources[source.name])

    def _context(self, buckets: Ints, levels: Floats) -> Context:
        return Context(self._levels.total_mean, self._levels.total_deviation, buckets, levels)

    def _deviations(self, rows: Floats, levels: Floats) -> Floats:
        """The evidence, where all that estimates does so beside the mean; ``levels``: one a row."""
        absolute = rows[:, self._absolute]
        if not absolute.any():
            return rows
        found = rows.copy()
        found[:, self._absolute] = np.where(absolute == 0.0, 0.0, absolute - levels[:, None])
        return found

    def _learn(self, endings: Sequence[_Ending]) -> None:
        """What was expected is judged first, by what was known before any of these endings."""
        buckets, stages, cells = places_of([e.point.steps_done for ending in endings for e in ending.path])
        rows = np.array([e.row for ending in endings for e in ending.path])
        remaining = np.concatenate([ending.log_remaining for ending in endings])
        tokens = np.expm1(remaining)
        bounds = np.cumsum([0, *(len(ending.path) for ending in endings)]).tolist()
        slices = [slice(start, end) for start, end in pairwise(bounds)]
        if self._learned:
            levels = self._tables[0, buckets]
            deviations = self._ridge.predict(self._deviations(rows, levels), stages)[:, 0]
            expected = levels + deviations
            for part in slices:
                self._expectation.judge(deviations[part])
            self._judge(endings, slices, buckets, remaining - expected)
        else:
            # Until now the means were those of the first to end, which are the shortest.
            self._levels, self._expectation, self._learned = Levels(), Expectation(), True
        for ending, part in zip(endings, slices, strict=True):
            self._learn_levels(ending, buckets[part].tolist(), cells[part].tolist())
        self._tables = self._levels.table()
        levels = self._tables[0, buckets]
        residuals = remaining - levels
        targets = np.stack((residuals, self._expectation.relative(cells, tokens)), axis=1)
        weights = np.array([len(e.path) ** -0.5 for e in endings for _ in e.path])
        self._ridge.learn(self._deviations(rows, levels), targets, stages, weights, len(endings))
        for ending, part in zip(endings, slices, strict=True):
            surprise = math.log1p(ending.total_tokens) - self._levels.total_mean
            points = [e.point for e in ending.path]
            ended = Ended(points, buckets[part], residuals[part], ending.total_tokens, surprise)
            for source in self._sources:
                source.learn(ended)

    def _learn_levels(self, ending: _Ending, buckets: Sequence[int], cells: Sequence[int]) -> None:
        steps = [ending.total_steps - e.point.steps_done for e in ending.path]
        seconds = [ending.tool_seconds - e.point.tool_seconds for e in ending.path]
        self._levels.add_total(math.log1p(ending.total_tokens))
        self._levels.add(buckets, ending.log_remaining.tolist(), steps, seconds)
        self._expectation.learn(cells, ending.remaining)

    def _judge(
        self, endings: Sequence[_Ending], slices: Sequence[slice], buckets: Ints, errors: Floats
    ) -> None:
        """Compare what was said on the way with what came, and calibrate by what would be said now."""
        alarm, known = False, self._calibrator.offsets()
        for ending, part in zip(endings, slices, strict=True):
            judgement = ending.judgement()
            if judgement is not None:
                self._trust.add(judgement)
            alarm |= self._calibrator.add(buckets[part], errors[part], known)
        if alarm:
            self._start_afresh(KEPT_AT_ALARM)

    def _start_afresh(self, newest: int) -> None:
        """The workload is no longer the one that was learned; but the ``newest`` endings were of this one."""
        self._outlived.forget_all()
        self._trust.drop_all_but(newest)
        self._levels.relearn(KEPT_AT_ALARM)
        self._expectation.relearn(KEPT_AT_ALARM)
        self._ridge.relearn(RELEARNED_SHARE)
        for source in self._sources:
            source.relearn()
