"""``heddle predictor``: train models on finished trajectories, and tell how good predictors are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import orjson
from rich.table import Table

from heddle.cli.output import ExitCode, Output
from heddle.cli.recordings import read_recordings
from heddle.errors import ConfigError, InvalidRequest
from heddle.predict import make_predictor
from heddle.predict.evaluation.recorded import RecordedTrajectory
from heddle.predict.evaluation.report import (
    PROMPT_ONLY,
    Playback,
    PredictorReport,
    evaluate,
    prompt_only,
    report,
)
from heddle.predict.evaluation.scores import Score
from heddle.predict.evaluation.stream import Estimates
from heddle.predict.models.base import LengthModel
from heddle.predict.models.catalogue import make_model
from heddle.predict.models.training import (
    estimates,
    held_out_estimates,
    learned_on,
    merged,
)

BASELINES = ("mean_by_step", "prompt_history")


@dataclass(frozen=True, slots=True)
class EvalOptions:
    """What ``heddle predictor eval`` was asked for."""

    predictor: str
    models: tuple[str, ...]
    playback: Playback
    plot: Path | None


def train(data: Path, models: Sequence[str], folder: Path, output: Output) -> ExitCode:
    """Train models, and ``progressive`` beside them, on all trajectories; write them into a folder."""
    trajectories = read_recordings(data)
    fresh = {name: make_model(name) for name in models}
    if not fresh:
        raise ConfigError("no model to train; name features, text, or both")
    said = _unseen(models, trajectories)
    for model in learned_on(fresh, trajectories).values():
        _create(folder)
        model.save(folder)
    everything = [_for_training(trajectory) for trajectory in trajectories]
    _, progressive = evaluate(partial(make_predictor, "progressive"), everything, said, Playback())
    (folder / "progressive.json").write_bytes(orjson.dumps(progressive.save()))
    summary = {"folder": str(folder), "models": list(fresh), "trajectories": len(trajectories)}
    if output.json:
        output.document(summary)
    else:
        output.text(f"{', '.join(fresh)} learned from {len(trajectories)} trajectories: {folder}")
    return ExitCode.OK


def judge(data: Path, options: EvalOptions, output: Output) -> ExitCode:
    """Train on the training split, play the test split, print the scores of every predictor."""
    trajectories = read_recordings(data)
    test = [t for t in trajectories if t.held_out]
    train_split = [t for t in trajectories if not t.held_out]
    if not test or not train_split:
        raise InvalidRequest("has too few prompts to split", path=str(data))
    said = _all_estimates(options.models, train_split, test)
    reports = _reports(options, trajectories, said)
    if options.plot is not None:
        from heddle.cli.predictor_plot import plot

        plot(reports, options.plot)
    if output.json:
        output.document({"file": str(data), "predictors": [asdict(one) for one in reports]})
        return ExitCode.OK
    output.text(_overall_table(reports, f"{data.name}: {len(test)} of {len(trajectories)} trajectories"))
    for one in reports:
        if one.predictor == options.predictor:
            output.text(_step_table(one))
    return ExitCode.OK


def _reports(
    options: EvalOptions, trajectories: Sequence[RecordedTrajectory], said: Estimates
) -> list[PredictorReport]:
    reports = []
    for name in dict.fromkeys([*BASELINES, *options.models, options.predictor]):
        heeded: Estimates = {} if name in BASELINES else said
        heard, predictor = evaluate(partial(make_predictor, name), trajectories, heeded, options.playback)
        if name == options.predictor:
            reports.append(report(PROMPT_ONLY, prompt_only(heard), None))
        reports.append(report(name, heard, predictor.trust()))
    return reports


def _all_estimates(
    models: Sequence[str], train_split: Sequence[RecordedTrajectory], test: Sequence[RecordedTrajectory]
) -> Estimates:
    """Of every trajectory, by models that were trained without its prompt."""
    fitted: Mapping[str, LengthModel] = learned_on({name: make_model(name) for name in models}, train_split)
    return merged([_unseen(models, train_split), *(estimates(model, test) for model in fitted.values())])


def _unseen(models: Sequence[str], trajectories: Sequence[RecordedTrajectory]) -> Estimates:
    return merged([held_out_estimates(partial(make_model, name), trajectories) for name in models])


def _for_training(trajectory: RecordedTrajectory) -> RecordedTrajectory:
    return replace(trajectory, held_out=False)


def _create(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise ConfigError(f"cannot create {folder}: {exc}") from exc


def _overall_table(reports: Sequence[PredictorReport], title: str) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in ("predictor", *_HEADINGS):
        table.add_column(heading, justify="left" if heading == "predictor" else "right")
    for one in reports:
        if one.overall is not None:
            table.add_row(one.predictor, *_cells(one.overall))
    return table


def _step_table(one: PredictorReport) -> Table:
    table = Table(title=f"{one.predictor}, by finished steps", title_justify="left")
    for heading in ("steps", *_HEADINGS):
        table.add_column(heading, justify="right")
    for steps, scored in one.by_step.items():
        table.add_row(str(steps), *_cells(scored))
    return table


_HEADINGS = ("points", "recall 10 %", "recall 20 %", "Pearson", "Spearman", "pinball", "in 80 %", "in 90 %")


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
