"""The signature of ``rehearse``, by the rules of :mod:`heddle.cli.commands`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heddle.cli.options import ConfigOption, JsonFlag, PresetOption, SetOption
from heddle.cli.output import Output, reported

DEFAULT_PRESET = "heddle"

_MACHINES_PANEL = "Machines"
_BATCH_PANEL = "Next batch"
_RACE_PANEL = "Race"


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command()(rehearse)


def rehearse(
    recorded: Annotated[
        str,
        typer.Argument(
            metavar="RECORDED",
            help="A data directory or store, of which the batch that finished last; records of heddle run, "
            "a trace or an event log (JSONL, also .gz); or a shipped trace.",
        ),
    ],
    gpus: Annotated[int, typer.Option("--gpus", min=1, help="The budget.", rich_help_panel=_MACHINES_PANEL)],
    gpu: Annotated[
        str | None,
        typer.Option("--gpu", help="Kind of GPU, such as h100_sxm.", rich_help_panel=_MACHINES_PANEL),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="Such as Qwen3-14B.", rich_help_panel=_MACHINES_PANEL)
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(
            "--profile",
            metavar="FILE",
            help="CSV with step times and prefill rates; without it the configured or the shipped one.",
            rich_help_panel=_MACHINES_PANEL,
        ),
    ] = None,
    slots_per_gpu: Annotated[
        int | None,
        typer.Option(
            "--slots-per-gpu", help="Generations that run at once.", rich_help_panel=_MACHINES_PANEL
        ),
    ] = None,
    groups: Annotated[
        int | None,
        typer.Option("--groups", min=1, help="As many as recorded.", rich_help_panel=_BATCH_PANEL),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option("--samples", min=1, help="Of each group.", rich_help_panel=_BATCH_PANEL),
    ] = None,
    tool_times: Annotated[
        str | None,
        typer.Option(
            "--tool-times",
            metavar="DISTRIBUTION",
            help="Where none were recorded, such as lognormal:median=1,sigma=0.8.",
            rich_help_panel=_BATCH_PANEL,
        ),
    ] = None,
    draws: Annotated[
        int, typer.Option("--draws", min=1, help="From the recorded batch.", rich_help_panel=_RACE_PANEL)
    ] = 4,
    margin: Annotated[
        float,
        typer.Option(
            "--margin",
            min=0.0,
            help="By which what looks at lengths must be faster than what does not.",
            rich_help_panel=_RACE_PANEL,
        ),
    ] = 0.02,
    parts: Annotated[
        int | None,
        typer.Option(
            "--parts",
            min=1,
            help="Rehearse one of so many equal parts of budget and batch.",
            show_default="two of the largest workers a part",
            rich_help_panel=_RACE_PANEL,
        ),
    ] = None,
    preset: PresetOption = None,
    config: ConfigOption = None,
    assignments: SetOption = [],  # noqa: B006 - typer copies the default of a list option
    json: JsonFlag = False,
) -> None:
    """Choose workers for the next batch by simulating an earlier one on all that could be chosen.

    The preset is heddle unless one is named or a configuration is given.
    """
    output = Output(json)
    with reported(output):
        from heddle.cli.rehearse import RehearseOptions
        from heddle.cli.rehearse import rehearse as run
        from heddle.cli.settings import resolve_config

        if preset is None and config is None:
            preset = DEFAULT_PRESET
        options = RehearseOptions(
            recorded=recorded,
            preset=preset,
            gpus=gpus,
            gpu=gpu,
            model=model,
            profile=profile,
            groups=groups,
            samples=samples,
            tool_times=tool_times,
            draws=draws,
            margin=margin,
            parts=parts,
        )
        resolved = resolve_config(config, {"engine.slots_per_gpu": slots_per_gpu}, assignments, preset)
        raise typer.Exit(run(resolved, options, output))
