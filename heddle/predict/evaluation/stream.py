"""Plays recorded trajectories through a predictor, batch after batch, and keeps what it said.

What is known when: the trajectories of a batch begin together, and time passes by generated tokens, one a
tick for each. At a point the predictor has seen every earlier batch to its end, and of its own batch whatever
had happened by that tick: the steps of those that run and the lengths of those that have ended. It never sees
a later batch, nor what lies behind a point.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from heddle.control.ports import LengthPredictor
from heddle.predict.evaluation.recorded import RecordedPoint, RecordedTrajectory, ReplayedView, view_of
from heddle.types import GroupId, Prediction, TrajectoryId

Estimates = Mapping[tuple[TrajectoryId, int], Sequence[Prediction]]
"""What models outside of the predictor said, by trajectory and finished steps."""


@dataclass(frozen=True, slots=True)
class Said:
    """One prediction beside the truth."""

    trajectory_id: TrajectoryId
    prompt_id: str
    prediction: Prediction | None
    steps_done: int
    generated_tokens: int
    remaining_tokens: int


def play(
    predictor: LengthPredictor,
    batch: Sequence[RecordedTrajectory],
    estimates: Estimates,
    *,
    name: str,
    learning: bool = True,
) -> Iterator[Said]:
    """One batch from its beginning to its end; without ``learning`` no ending is shown to the predictor.

    ``name`` tells the groups of this batch from those of the same prompts in another.
    """
    runs = [_Run(recorded, GroupId(f"{name}/{recorded.prompt_id}")) for recorded in batch]
    first = predictor.predict([run.view for run in runs])
    for run, prediction in zip(runs, first, strict=True):
        yield run.hear(predictor, prediction, estimates)
    events = [(run.next_tick, index) for index, run in enumerate(runs)]
    heapq.heapify(events)
    while events:
        _, index = heapq.heappop(events)
        run = runs[index]
        if run.at_end:
            run.end(predictor, learning)
            _learn(predictor)
            continue
        run.advance()
        predictor.observe_step(run.view)
        yield run.hear(predictor, predictor.predict([run.view])[0], estimates)
        heapq.heappush(events, (run.next_tick, index))


def _learn(predictor: LengthPredictor) -> None:
    """Everything that waits: generating a token takes longer than that."""
    while predictor.waiting:
        predictor.settle()


class _Run:
    def __init__(self, recorded: RecordedTrajectory, group: GroupId) -> None:
        self._recorded = recorded
        self._position = 0
        self.view: ReplayedView = view_of(recorded, group, known=True)

    @property
    def _point(self) -> RecordedPoint:
        return self._recorded.points[self._position]

    @property
    def at_end(self) -> bool:
        return self._position + 1 == len(self._recorded.points)

    @property
    def next_tick(self) -> int:
        if self.at_end:
            return self._recorded.total_tokens
        return self._recorded.points[self._position + 1].generated_tokens

    def advance(self) -> None:
        self._position += 1
        self.view.advance(self._point)

    def hear(self, predictor: LengthPredictor, prediction: Prediction | None, estimates: Estimates) -> Said:
        point = self._point
        self.view.prediction = prediction
        for estimate in estimates.get((self.view.trajectory_id, point.steps_done), ()):
            self.view.prediction = predictor.refine(self.view, estimate) or self.view.prediction
        return Said(
            self.view.trajectory_id,
            self._recorded.prompt_id,
            self.view.prediction,
            point.steps_done,
            point.generated_tokens,
            self._recorded.total_tokens - point.generated_tokens,
        )

    def end(self, predictor: LengthPredictor, learning: bool) -> None:
        view, recorded = self.view, self._recorded
        view.steps_done, view.generated_tokens = recorded.total_steps, recorded.total_tokens
        view.tool_seconds = recorded.tool_seconds
        predictor.observe_step(view)
        if learning:
            predictor.observe_finished(view)
        else:
            predictor.forget(view.trajectory_id)
