"""The signatures of ``simulate`` and ``replay``, by the rules of :mod:`heddle.cli.commands`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from heddle.cli.options import JsonFlag
from heddle.cli.output import Output, reported

DEFAULT_PRESETS = "verl,verl-rebalance,slime,sticky,autellix,fix1,fix8,heddle"

_WORKLOAD_PANEL = "Workload"
_MACHINES_PANEL = "Machines"
_CONFIGURATIONS_PANEL = "Configurations"
_RUNS_PANEL = "Runs"
_COUNTERFACTUAL_PANEL = "What if"


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.command()(simulate)
    app.command()(replay)


def simulate(
    trace: Annotated[
        str,
        typer.Argument(
            metavar="TRACE",
            help="Trace, Mooncake trace or event log (JSONL, also .gz), - for stdin, or a shipped one: "
            "coding_agent, search_agent, math_agent.",
        ),
    ],
    gpus: Annotated[int, typer.Option("--gpus", help="The budget.", rich_help_panel=_MACHINES_PANEL)] = 8,
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
            help="CSV with step times and prefill rates; without it the shipped table.",
            rich_help_panel=_MACHINES_PANEL,
        ),
    ] = None,
    slots_per_gpu: Annotated[
        int,
        typer.Option(
            "--slots-per-gpu",
            min=1,
            max=4096,
            help="Generations that run at once.",
            rich_help_panel=_MACHINES_PANEL,
        ),
    ] = 64,
    prefill: Annotated[
        Literal["exclusive", "mixed"],
        typer.Option(
            "--prefill",
            help="Whether running generations stand still while a prompt is computed.",
            rich_help_panel=_MACHINES_PANEL,
        ),
    ] = "exclusive",
    tool_concurrency: Annotated[
        int | None,
        typer.Option(
            "--tool-concurrency",
            help="Tools that run at once.",
            show_default="no limit",
            rich_help_panel=_MACHINES_PANEL,
        ),
    ] = None,
    cold_start: Annotated[
        float,
        typer.Option(
            "--cold-start",
            metavar="SECONDS",
            help="Of a tool that finds no sandbox ready.",
            rich_help_panel=_MACHINES_PANEL,
        ),
    ] = 0.0,
    overhead: Annotated[
        float,
        typer.Option(
            "--overhead",
            metavar="SECONDS",
            help="Of each step outside engines and tools.",
            rich_help_panel=_MACHINES_PANEL,
        ),
    ] = 0.0,
    compare: Annotated[
        str,
        typer.Option(
            "--compare",
            metavar="NAME,NAME",
            help="Presets; ratios are to the first. heddle presets lists them.",
            rich_help_panel=_CONFIGURATIONS_PANEL,
        ),
    ] = DEFAULT_PRESETS,
    presets: Annotated[
        Path | None,
        typer.Option(
            "--presets",
            metavar="FILE.toml",
            help="Presets of your own.",
            rich_help_panel=_CONFIGURATIONS_PANEL,
        ),
    ] = None,
    pool: Annotated[
        str,
        typer.Option(
            "--pool",
            metavar="DEGREES",
            help="Of presets that fix the workers and name none: 4+1+1, 8* for as many as fit.",
            show_default="1*",
            rich_help_panel=_CONFIGURATIONS_PANEL,
        ),
    ] = "auto",
    predictor: Annotated[
        str,
        typer.Option(
            "--predictor",
            help="Of presets that name none: oracle, noisy_oracle, mean_by_step, progressive.",
            rich_help_panel=_CONFIGURATIONS_PANEL,
        ),
    ] = "oracle",
    predictor_error: Annotated[
        float,
        typer.Option(
            "--predictor-error",
            help="Of noisy_oracle: deviation of the logarithm.",
            rich_help_panel=_CONFIGURATIONS_PANEL,
        ),
    ] = 0.5,
    groups: Annotated[
        int | None,
        typer.Option(
            "--groups",
            help="Draw so many prompts with replacement; without it the trace as it is.",
            rich_help_panel=_WORKLOAD_PANEL,
        ),
    ] = None,
    samples: Annotated[
        int,
        typer.Option("--samples", help="Trajectories of each drawn prompt.", rich_help_panel=_WORKLOAD_PANEL),
    ] = 16,
    samples_from: Annotated[
        Literal["prompt", "trace"],
        typer.Option(
            "--samples-from",
            help="Samples of the drawn prompt, or of the whole trace behind that prompt.",
            rich_help_panel=_WORKLOAD_PANEL,
        ),
    ] = "prompt",
    tool_times: Annotated[
        str | None,
        typer.Option(
            "--tool-times",
            metavar="DISTRIBUTION",
            help="Where none were recorded: constant:2, exponential:mean=1.5, "
            "lognormal:median=1,sigma=0.8, recorded.",
            rich_help_panel=_WORKLOAD_PANEL,
        ),
    ] = None,
    max_tool_seconds: Annotated[
        float | None,
        typer.Option(
            "--max-tool-seconds",
            metavar="SECONDS",
            help="Cut longer tools.",
            rich_help_panel=_WORKLOAD_PANEL,
        ),
    ] = None,
    max_context: Annotated[
        int | None,
        typer.Option(
            "--max-context",
            metavar="TOKENS",
            help="Leave out trajectories that grow beyond.",
            rich_help_panel=_WORKLOAD_PANEL,
        ),
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", help="How many.", rich_help_panel=_RUNS_PANEL)] = 10,
    seed: Annotated[int, typer.Option("--seed", min=0, help="The first.", rich_help_panel=_RUNS_PANEL)] = 0,
    jobs: Annotated[int, typer.Option("--jobs", help="Processes.", rich_help_panel=_RUNS_PANEL)] = 1,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            metavar="FILE.png",
            help="Charts of the first seed; needs matplotlib.",
            rich_help_panel=_RUNS_PANEL,
        ),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Play a recorded workload under several configurations, in virtual time."""
    output = Output(json)
    with reported(output):
        from heddle.cli.simulate import SimulateOptions
        from heddle.cli.simulate import simulate as run

        options = SimulateOptions(
            trace=trace,
            gpus=gpus,
            gpu=gpu,
            model=model,
            profile=profile,
            compare=compare,
            presets=presets,
            pool=pool,
            slots_per_gpu=slots_per_gpu,
            seeds=seeds,
            seed=seed,
            jobs=jobs,
            groups=groups,
            samples=samples,
            samples_from=samples_from,
            tool_times=tool_times,
            max_tool_seconds=max_tool_seconds,
            max_context=max_context,
            predictor=predictor,
            predictor_error=predictor_error,
            prefill=prefill,
            tool_concurrency=tool_concurrency,
            cold_start=cold_start,
            overhead=overhead,
            plot=plot,
        )
        raise typer.Exit(run(options, output))


def replay(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="An event log of the data directory.")],
    presets: Annotated[
        str | None,
        typer.Option(
            "--with",
            metavar="NAME,NAME",
            help="Simulate what these presets would have done to the batch, instead.",
            rich_help_panel=_COUNTERFACTUAL_PANEL,
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--presets",
            metavar="FILE.toml",
            help="Presets of your own.",
            rich_help_panel=_COUNTERFACTUAL_PANEL,
        ),
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(
            "--profile",
            metavar="FILE",
            help="Engine times; without it, nor --gpu and --model, fitted to the log.",
            rich_help_panel=_COUNTERFACTUAL_PANEL,
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option("--gpu", help="Of the profile.", rich_help_panel=_COUNTERFACTUAL_PANEL),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", help="Of the profile.", rich_help_panel=_COUNTERFACTUAL_PANEL),
    ] = None,
    prefill: Annotated[
        Literal["exclusive", "mixed"],
        typer.Option(
            "--prefill",
            help="Mixed is the embedded engine's way.",
            rich_help_panel=_COUNTERFACTUAL_PANEL,
        ),
    ] = "mixed",
    predictor: Annotated[
        str | None,
        typer.Option(
            "--predictor",
            help="Of the presets; by default the recorded run's.",
            rich_help_panel=_COUNTERFACTUAL_PANEL,
        ),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Feed an event log to a fresh control plane: the commands must be the same, byte for byte."""
    output = Output(json)
    with reported(output):
        if presets is None:
            from heddle.cli.files import replay as replay_log

            raise typer.Exit(replay_log(log, output))
        from heddle.cli.counterfactual import CounterfactualOptions, replay_with

        options = CounterfactualOptions(
            presets=presets,
            file=file,
            gpu=gpu,
            model=model,
            profile=profile,
            prefill=prefill,
            predictor=predictor,
        )
        raise typer.Exit(replay_with(log, options, output))
