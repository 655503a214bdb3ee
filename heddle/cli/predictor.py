"""``heddle predictor``: train models on finished trajectories, and tell how good predictors are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import orjson

from heddle.cli.output import ExitCode, Output, check_writable
from heddle.cli.predictor_tables import crossed_table, overall_table, same_table, step_table
from heddle.cli.recordings import read_recordings
from heddle.errors import ConfigError, InvalidRequest
from heddle.predict import make_predictor
from heddle.predict.evaluation.folds import folds
from heddle.predict.evaluation.recorded import RecordedTrajectory
from heddle.predict.evaluation.report import (
    PROMPT_ONLY,
    Playback,
    PredictorReport,
    evaluate,
    prompt_only,
    report,
)
from heddle.predict.evaluation.scores import Score, mean_score, score
from heddle.predict.evaluation.stream import Estimates, Said
from heddle.predict.models.base import LengthModel
from heddle.predict.models.catalogue import make_model
from heddle.predict.models.training import (
    estimates,
    held_out_estimates,
    learned_on,
    merged,
)
from heddle.types import Trust

BASELINES = ("mean_by_step", "prompt_history")


@dataclass(frozen=True, slots=True)
class EvalOptions:
    """What ``heddle predictor eval`` was asked for."""

    predictor: str
    models: tuple[str, ...]
    playback: Playback
    plot: Path | None
    seeds: int = 0
    """Splits of all prompts that are played besides the recording's own."""
    training_only: bool = False
    """Whether the test split is left alone: for choosing settings."""


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
    if options.plot is not None:
        check_writable(options.plot, "--plot")
    trajectories = read_recordings(data)
    if options.training_only:
        trajectories = [t for t in trajectories if not t.held_out]
    held_out = sum(t.held_out is True for t in trajectories)
    if held_out == len(trajectories) or not (held_out or options.training_only):
        raise InvalidRequest("has too few prompts to split", path=str(data))
    reports = [] if options.training_only else _reports(options, trajectories)
    crossed = _crossed(options, trajectories)
    if options.plot is not None:
        from heddle.cli.predictor_plot import plot

        plot(reports, options.plot)
    if output.json:
        predictors = [asdict(one) for one in reports]
        lines = {name: asdict(scored) for name, scored in crossed.items()}
        output.document({"file": str(data), "predictors": predictors, "crossed": lines})
        return ExitCode.OK
    title = f"{data.name}: {held_out} of {len(trajectories)} trajectories"
    if reports:
        output.text(overall_table(reports, title))
    for one in reports:
        if one.predictor == options.predictor:
            for table, rows in ((step_table, one.by_step), (same_table, one.same)):
                if rows:  # trajectories may be too short, or too few
                    output.text(table(one))
    if crossed:
        output.text(crossed_table(crossed, f"{data.name}: each prompt held out once, {options.seeds} splits"))
    return ExitCode.OK


def _reports(options: EvalOptions, trajectories: Sequence[RecordedTrajectory]) -> list[PredictorReport]:
    heard = _heard(options, trajectories)
    return [report(name, said, trust) for name, (said, trust) in heard.items()]


def _heard(
    options: EvalOptions, trajectories: Sequence[RecordedTrajectory]
) -> dict[str, tuple[Sequence[Said], Trust | None]]:
    """What each predictor said of those held out, and its own judgement."""
    train_split = [t for t in trajectories if not t.held_out]
    estimated = _all_estimates(options.models, train_split, [t for t in trajectories if t.held_out])
    heard: dict[str, tuple[Sequence[Said], Trust | None]] = {}
    for name in dict.fromkeys([*BASELINES, *options.models, options.predictor]):
        heeded: Estimates = {} if name in BASELINES else estimated
        said, predictor = evaluate(partial(make_predictor, name), trajectories, heeded, options.playback)
        if name == options.predictor:
            heard[PROMPT_ONLY] = prompt_only(said), None
        heard[name] = said, predictor.trust()
    return heard


def _crossed(options: EvalOptions, trajectories: Sequence[RecordedTrajectory]) -> dict[str, Score]:
    """Of each predictor: every prompt held out once, for each seed; scored together, then averaged."""
    scores: dict[str, list[Score]] = {}
    for seed in range(options.seeds):
        said: dict[str, list[Said]] = {}
        for refolded in folds(trajectories, seed):
            for name, (part, _) in _heard(options, refolded).items():
                said.setdefault(name, []).extend(part)
        for name, everything in said.items():
            scored = score(everything)
            if scored is not None:
                scores.setdefault(name, []).append(scored)
    return {name: mean_score(found) for name, found in scores.items()}


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
