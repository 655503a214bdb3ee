"""The tables of ``heddle predictor eval``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table

from heddle.predict.evaluation.report import PredictorReport
from heddle.predict.evaluation.scores import Interval, Score

_HEADINGS = ("points", "recall 10 %", "recall 20 %", "Pearson", "Spearman", "pinball", "in 80 %", "in 90 %")


def overall_table(reports: Sequence[PredictorReport], title: str) -> Table:
    """One row a predictor, with the interval of the first recall, by prompts drawn with replacement."""
    table = _table(title, "predictor", *_HEADINGS[:2], "90 % of samples", *_HEADINGS[2:])
    for one in reports:
        if one.overall is not None:
            points, recall, *others = _cells(one.overall)
            table.add_row(one.predictor, points, recall, _range(one.recall_10), *others)
    return table


def crossed_table(scores: Mapping[str, Score], title: str) -> Table:
    """One row a predictor."""
    table = _table(title, "predictor", *_HEADINGS)
    for name, scored in scores.items():
        table.add_row(name, *_cells(scored))
    return table


def step_table(one: PredictorReport) -> Table:
    """One row a number of finished steps."""
    table = _table(f"{one.predictor}, by finished steps", "steps", *_HEADINGS)
    for steps, scored in one.by_step.items():
        table.add_row(str(steps), *_cells(scored))
    return table


def same_table(one: PredictorReport) -> Table:
    """One row a number of finished steps, of the same trajectories."""
    headings = ("trajectories", "Spearman, remaining", "Spearman, whole", "recall 20 %, whole")
    table = _table(f"{one.predictor}, the same trajectories by finished steps", "steps", *headings)
    for steps, same in one.same.items():
        numbers = (same.remaining, same.whole, same.whole_recall_20)
        table.add_row(str(steps), str(same.trajectories), *(f"{number:.3f}" for number in numbers))
    return table


def _table(title: str, first: str, *others: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column(first, justify="left")
    for heading in others:
        table.add_column(heading, justify="right")
    return table


def _range(interval: Interval | None) -> str:
    return "-" if interval is None else f"{interval.low:.2f}-{interval.high:.2f}"


def _cells(scored: Score) -> list[str]:
    numbers = (
        scored.recall_10,
        scored.recall_20,
        scored.pearson,
        scored.spearman,
        scored.pinball,
        scored.coverage_80,
    )
    outer = "-" if scored.coverage_90 is None else f"{scored.coverage_90:.3f}"
    return [str(scored.points), *(f"{number:.3f}" for number in numbers), outer]
