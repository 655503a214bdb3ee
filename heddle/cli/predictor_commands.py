"""The signatures of ``heddle predictor``, by the rules of :mod:`heddle.cli.commands`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heddle.cli.options import JsonFlag
from heddle.cli.output import Output, reported

DataArgument = Annotated[
    Path,
    typer.Argument(
        metavar="DATA",
        help="Finished trajectories: a coordinator's data directory or store, running or not; or "
        "FILE.jsonl[.gz] of records, traces, or points with text.",
    ),
]
ModelsOption = Annotated[
    str,
    typer.Option("--models", metavar="NAME,...", help="features, text; or none. They need the extra learn."),
]

predictor = typer.Typer(
    name="predictor", help="Train predictors of length, and tell how good they are.", no_args_is_help=True
)


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.add_typer(predictor)


@predictor.command(name="train")
def train(
    data: DataArgument,
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where the models go.")],
    models: ModelsOption = "features,text",
    json: JsonFlag = False,
) -> None:
    """Train models on finished trajectories, and the weights that progressive gives them."""
    output = Output(json)
    with reported(output):
        from heddle.cli.predictor import train as learn

        raise typer.Exit(learn(data, _names(models), out, output))


@predictor.command(name="eval")
def evaluate(
    data: DataArgument,
    name: Annotated[str, typer.Option("--predictor", help="What is judged.")] = "progressive",
    models: ModelsOption = "features,text",
    prompts: Annotated[int, typer.Option("--prompts", min=1, help="That begin together.")] = 64,
    frozen: Annotated[
        bool, typer.Option("--frozen", help="Learn nothing from the endings of the test split.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE.png", help="Draw calibration and ranks.")
    ] = None,
    seeds: Annotated[
        int, typer.Option("--seeds", min=0, help="Also hold out each prompt once, in so many splits.")
    ] = 0,
    training_only: Annotated[
        bool, typer.Option("--training-only", help="Leave the test split alone: for choosing settings.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Learn from the training split, predict the test split step by step, score against what came.

    Prompts are split 80 to 20 where the file does not say how. Baselines: the mean of the step, the
    prediction from the prompt alone, and the history of the prompt.
    """
    output = Output(json)
    with reported(output):
        from heddle.cli.predictor import EvalOptions, judge
        from heddle.predict.evaluation.report import Playback

        playback = Playback(prompts, learning=not frozen)
        splits = max(seeds, 1) if training_only else seeds
        options = EvalOptions(name, _names(models), playback, plot, splits, training_only)
        raise typer.Exit(judge(data, options, output))


def _names(models: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in models.split(",") if name.strip() and name.strip() != "none")
