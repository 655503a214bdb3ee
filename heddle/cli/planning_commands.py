"""The signatures of ``plan``, ``profile`` and ``presets``, by the rules of :mod:`heddle.cli.commands`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from heddle.cli.options import ConfigOption, JsonFlag, SetOption, SlotsOption
from heddle.cli.output import Output, reported

Placer = Literal["presorted_dp", "exact", "drain"]
Allocator = Literal["fixed", "annealing", "exact", "drain"]
Price = Literal["static", "kv_aware", "draining"]

_PROFILE_PANEL = "Profile"
_SEARCH_PANEL = "Search"
_WORKERS_PANEL = "What a worker can be"


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.command()(plan)
    app.command()(profile)
    app.command()(presets)


def plan(
    lengths: Annotated[
        str,
        typer.Option(
            "--lengths",
            metavar="FILE",
            help="Predicted tokens: a number a line, or JSON lines of tokens and quantiles; - is stdin.",
        ),
    ],
    gpus: Annotated[int, typer.Option("--gpus", help="The budget.")],
    gpu: Annotated[
        str | None,
        typer.Option("--gpu", help="Kind of GPU, such as h100_sxm.", rich_help_panel=_PROFILE_PANEL),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="Such as Qwen3-14B.", rich_help_panel=_PROFILE_PANEL)
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(
            "--profile",
            metavar="FILE",
            help="CSV with the step times; without it the shipped table.",
            rich_help_panel=_PROFILE_PANEL,
        ),
    ] = None,
    context: Annotated[
        float | None,
        typer.Option(
            "--context",
            metavar="TOKENS",
            help="Mean context of a running trajectory.",
            rich_help_panel=_PROFILE_PANEL,
        ),
    ] = None,
    degrees: Annotated[
        str | None,
        typer.Option("--degrees", metavar="1,2,4", help="Allowed degrees.", rich_help_panel=_WORKERS_PANEL),
    ] = None,
    fixed_degree: Annotated[
        int | None,
        typer.Option("--fixed-degree", help="For --allocator fixed.", rich_help_panel=_WORKERS_PANEL),
    ] = None,
    kv_heads: Annotated[
        int | None,
        typer.Option(
            "--kv-heads",
            help="KV heads of the model; degrees that do not divide them are out.",
            rich_help_panel=_WORKERS_PANEL,
        ),
    ] = None,
    slots_per_gpu: Annotated[
        int | None,
        typer.Option(
            "--slots-per-gpu", help="Trajectories that run at once.", rich_help_panel=_WORKERS_PANEL
        ),
    ] = None,
    min_workers: Annotated[
        int | None,
        typer.Option("--min-workers", help="For --allocator exact.", rich_help_panel=_WORKERS_PANEL),
    ] = None,
    max_workers: Annotated[
        int | None,
        typer.Option("--max-workers", help="For --allocator exact.", rich_help_panel=_WORKERS_PANEL),
    ] = None,
    placer: Annotated[
        Placer | None,
        typer.Option("--placer", help="Who makes the groups.", rich_help_panel=_SEARCH_PANEL),
    ] = None,
    allocator: Annotated[
        Allocator | None,
        typer.Option(
            "--allocator",
            help="Who chooses the workers.",
            show_default="drain",
            rich_help_panel=_SEARCH_PANEL,
        ),
    ] = None,
    price: Annotated[
        Price | None,
        typer.Option(
            "--price",
            help="What a group costs; draining for drain, else static.",
            rich_help_panel=_SEARCH_PANEL,
        ),
    ] = None,
    bundle_below: Annotated[
        float,
        typer.Option(
            "--bundle-below",
            metavar="TOKENS",
            help="presorted_dp bundles shorter ones.",
            rich_help_panel=_SEARCH_PANEL,
        ),
    ] = 0.0,
    trust: Annotated[
        float,
        typer.Option(
            "--trust",
            help="In the lengths, 0 to 1: 1 takes medians as they are, 0 all trajectories as equal.",
            rich_help_panel=_SEARCH_PANEL,
        ),
    ] = 1.0,
    seed: Annotated[int, typer.Option("--seed", rich_help_panel=_SEARCH_PANEL)] = 0,
    deadline: Annotated[
        float,
        typer.Option(
            "--deadline",
            metavar="SECONDS",
            help="Of the search by drain and annealing.",
            rich_help_panel=_SEARCH_PANEL,
        ),
    ] = 1.0,
    json: JsonFlag = False,
) -> None:
    """Plan workers and groups from predicted lengths, a GPU budget and a profile."""
    output = Output(json)
    with reported(output):
        from heddle.cli.plan import PlanOptions
        from heddle.cli.plan import plan as make_plan

        options = PlanOptions(
            lengths=lengths,
            gpus=gpus,
            gpu=gpu,
            model=model,
            profile=profile,
            degrees=degrees,
            placer=placer,
            allocator=allocator,
            fixed_degree=fixed_degree,
            price=price,
            kv_heads=kv_heads,
            slots_per_gpu=slots_per_gpu,
            context_tokens=context,
            min_workers=min_workers,
            max_workers=max_workers,
            bundle_below=bundle_below,
            trust=trust,
            seed=seed,
            deadline_s=deadline,
        )
        raise typer.Exit(make_plan(options, output))


def profile(
    out: Annotated[Path, typer.Option("--out", metavar="FILE.csv", help="Where the table goes.")],
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE.png", help="By default beside the table; needs matplotlib."),
    ] = None,
    degrees: Annotated[
        str | None,
        typer.Option("--degrees", metavar="1,2", help="By default powers of two up to the usable cores."),
    ] = None,
    batches: Annotated[
        str | None,
        typer.Option("--batches", metavar="1,2,4", help="By default powers of two up to the slots."),
    ] = None,
    context: Annotated[
        int, typer.Option("--context", metavar="TOKENS", help="Mean context of a running generation.")
    ] = 256,
    rounds: Annotated[int, typer.Option("--rounds", help="Every point is measured once in each.")] = 3,
    gpu: Annotated[str, typer.Option("--gpu", help="How the table calls this hardware.")] = "cpu",
    slots: SlotsOption = None,
    config: ConfigOption = None,
    assignments: SetOption = [],  # noqa: B006 - typer copies the default of a list option
    json: JsonFlag = False,
) -> None:
    """Measure the step times of the engine on this machine, as a profile for plan."""
    output = Output(json)
    with reported(output):
        from heddle.cli.profile import ProfileOptions
        from heddle.cli.profile import profile as measure
        from heddle.cli.settings import resolve_config

        options = ProfileOptions(out, plot, degrees, batches, context, rounds, gpu)
        raise typer.Exit(
            measure(resolve_config(config, {"engine.slots": slots}, assignments), options, output)
        )


def presets(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="All without one.")] = None,
    config: ConfigOption = None,
    json: JsonFlag = False,
) -> None:
    """Print presets, the shipped ones and those of a configuration file, as TOML to build on."""
    output = Output(json)
    with reported(output):
        from heddle.cli.presets import show

        raise typer.Exit(show(name, config, output))
