"""The signatures of all commands, their help, and nothing else.

Every command resolves its options and calls one function of a sibling module. Those modules are imported
inside the commands: reading the help must not load the REST server, pydantic or an engine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heddle import __version__
from heddle.cli.options import (
    DEFAULT_URL,
    BatchArgument,
    BatchIdOption,
    BatchTimeoutOption,
    ConfigOption,
    ConstrainedOption,
    DataDirOption,
    EngineOption,
    EnvironmentOption,
    ExportFormatName,
    GpusOption,
    JsonFlag,
    MaxStepsOption,
    MaxTokensOption,
    MaxTokensPerStepOption,
    MaxToolCallsOption,
    ModelOption,
    OptionalBatchArgument,
    ParserOption,
    PoolOption,
    PresetOption,
    SamplesOption,
    SeedOption,
    SetOption,
    SlotsOption,
    TasksArgument,
    TemperatureOption,
    TimeoutOption,
    TokenOption,
    UrlOption,
    WorkersOption,
)
from heddle.cli.output import Output, reported
from heddle.cli.planning_commands import register
from heddle.cli.predictor_commands import register as register_predictor
from heddle.cli.rehearsal_commands import register as register_rehearsal
from heddle.cli.simulation_commands import register as register_simulation

app = typer.Typer(
    name="heddle",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def heddle(
    show_version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit."),
    ] = False,
) -> None:
    """Orchestrates agentic RL rollouts: batches of prompts in, finished trajectories out."""


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on; loopback by default.")] = None,
    port: Annotated[int | None, typer.Option(help="0 takes a free port.")] = None,
    token: TokenOption = None,
    engine: EngineOption = None,
    model: ModelOption = None,
    gpus: GpusOption = None,
    workers: WorkersOption = [],  # noqa: B006 - typer copies the default of a list option
    pool: PoolOption = None,
    slots: SlotsOption = None,
    data_dir: DataDirOption = None,
    preset: PresetOption = None,
    config: ConfigOption = None,
    assignments: SetOption = [],  # noqa: B006
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print how SGLang servers would be started, and start nothing.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Start the coordinator, its workers and the REST server."""
    output = Output(json)
    with reported(output):
        from heddle.garbage import uncollected

        with uncollected():
            from heddle.cli.serve import serve as start
            from heddle.cli.serve import show_launches
            from heddle.cli.settings import engine_options, resolve_config

        options = {
            "server.host": host,
            "server.port": port,
            "server.token": token,
            **engine_options(engine, model, gpus, workers),
            "engine.pool": pool,
            "engine.slots": slots,
            "data_dir": data_dir,
        }
        act = show_launches if dry_run else start
        raise typer.Exit(act(resolve_config(config, options, assignments, preset), output))


@app.command()
def run(
    tasks: TasksArgument,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where the trajectories go (JSONL).")],
    environment: EnvironmentOption = None,
    samples: SamplesOption = None,
    constrained: ConstrainedOption = None,
    parser: ParserOption = None,
    temperature: TemperatureOption = None,
    seed: SeedOption = None,
    batch_id: BatchIdOption = None,
    max_steps: MaxStepsOption = None,
    max_tokens: MaxTokensOption = None,
    max_tokens_per_step: MaxTokensPerStepOption = None,
    max_tool_calls: MaxToolCallsOption = None,
    timeout: TimeoutOption = None,
    batch_timeout: BatchTimeoutOption = None,
    engine: EngineOption = None,
    model: ModelOption = None,
    gpus: GpusOption = None,
    workers: WorkersOption = [],  # noqa: B006 - typer copies the default of a list option
    pool: PoolOption = None,
    slots: SlotsOption = None,
    data_dir: DataDirOption = None,
    preset: PresetOption = None,
    config: ConfigOption = None,
    assignments: SetOption = [],  # noqa: B006
    json: JsonFlag = False,
) -> None:
    """Run one batch in this process: start workers, roll out, write trajectories, stop."""
    output = Output(json)
    with reported(output):
        from heddle.cli import batches, settings
        from heddle.cli.run import run as run_tasks
        from heddle.cli.tasks import read_tasks

        overrides = {
            **settings.engine_options(engine, model, gpus, workers),
            "engine.pool": pool,
            "engine.slots": slots,
            "data_dir": data_dir,
        }
        resolved = settings.resolve_config(config, overrides, assignments, preset)
        task_file = read_tasks(tasks)
        options = batches.BatchOptions(
            batch_id=batch_id,
            environment=environment,
            samples_per_prompt=samples,
            constrained=constrained,
            parser=parser,
            temperature=temperature,
            seed=seed,
            max_steps=max_steps,
            max_tokens=max_tokens,
            max_tokens_per_step=max_tokens_per_step,
            max_tool_calls=max_tool_calls,
            timeout_s=timeout,
            batch_timeout_s=batch_timeout,
        )
        request = batches.build_request(task_file, options)
        raise typer.Exit(run_tasks(resolved, task_file, request, out, output))


@app.command()
def submit(
    tasks: TasksArgument,
    environment: EnvironmentOption = None,
    samples: SamplesOption = None,
    constrained: ConstrainedOption = None,
    parser: ParserOption = None,
    temperature: TemperatureOption = None,
    seed: SeedOption = None,
    batch_id: BatchIdOption = None,
    max_steps: MaxStepsOption = None,
    max_tokens: MaxTokensOption = None,
    max_tokens_per_step: MaxTokensPerStepOption = None,
    max_tool_calls: MaxToolCallsOption = None,
    timeout: TimeoutOption = None,
    batch_timeout: BatchTimeoutOption = None,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    json: JsonFlag = False,
) -> None:
    """Send a batch to a running server."""
    output = Output(json)
    with reported(output):
        from heddle.cli import batches, remote
        from heddle.cli.tasks import read_tasks

        task_file = read_tasks(tasks)
        options = batches.BatchOptions(
            batch_id=batch_id,
            environment=environment,
            samples_per_prompt=samples,
            constrained=constrained,
            parser=parser,
            temperature=temperature,
            seed=seed,
            max_steps=max_steps,
            max_tokens=max_tokens,
            max_tokens_per_step=max_tokens_per_step,
            max_tool_calls=max_tool_calls,
            timeout_s=timeout,
            batch_timeout_s=batch_timeout,
        )
        request = batches.build_request(task_file, options)
        raise typer.Exit(remote.submit(remote.Server(url, token), task_file, request, output))


@app.command()
def status(
    batch: OptionalBatchArgument = None,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    json: JsonFlag = False,
) -> None:
    """Show batches and workers of a running server."""
    output = Output(json)
    with reported(output):
        from heddle.cli import remote

        raise typer.Exit(remote.status(remote.Server(url, token), batch, output))


@app.command()
def watch(
    batch: OptionalBatchArgument = None,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    json: JsonFlag = False,
) -> None:
    """Follow a running server live; with BATCH, until that batch is over."""
    output = Output(json)
    with reported(output):
        from heddle.cli.remote import Server
        from heddle.cli.watch import watch as follow

        raise typer.Exit(follow(Server(url, token), batch, output))


@app.command()
def cancel(
    batch: BatchArgument,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    json: JsonFlag = False,
) -> None:
    """End every open trajectory of a batch."""
    output = Output(json)
    with reported(output):
        from heddle.cli import remote

        raise typer.Exit(remote.cancel(remote.Server(url, token), batch, output))


register(app)
register_simulation(app)
register_rehearsal(app)
register_predictor(app)


@app.command()
def export(
    source: Annotated[
        Path, typer.Argument(metavar="TRAJECTORIES.jsonl", help="What heddle run or the server wrote.")
    ],
    to: Annotated[ExportFormatName, typer.Option("--format", help="What to write.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE")],
    json: JsonFlag = False,
) -> None:
    """Convert finished trajectories to what a trainer reads."""
    output = Output(json)
    with reported(output):
        from heddle.cli.files import export as convert

        raise typer.Exit(convert(source, to, out, output))


@app.command()
def tasks(
    environments: Annotated[
        list[str], typer.Argument(metavar="ENVIRONMENT...", help="math, code, search, guess.")
    ],
    limit: Annotated[int | None, typer.Option("--limit", min=0, help="Tasks of each environment.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Shuffle each environment's tasks.")] = None,
) -> None:
    """Print tasks that ship with Heddle, as the lines of a task file."""
    output = Output(json=False)
    with reported(output):
        from heddle.cli.files import print_tasks

        raise typer.Exit(print_tasks(environments, limit, seed, output))


@app.command()
def doctor(
    data_dir: DataDirOption = None,
    config: ConfigOption = None,
    assignments: SetOption = [],  # noqa: B006 - typer copies the default of a list option
    json: JsonFlag = False,
) -> None:
    """Tell what is here, what is missing, and the command that mends it."""
    output = Output(json)
    with reported(output):
        from heddle.cli.machine import doctor as diagnose

        raise typer.Exit(diagnose(config, {"data_dir": data_dir}, assignments, output))


@app.command()
def model(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="A model that Heddle can bring.")
    ] = None,
    config: ConfigOption = None,
    json: JsonFlag = False,
) -> None:
    """Bring the embedded engine's model into the cache, once, and check its sum."""
    output = Output(json)
    with reported(output):
        from heddle.cli.machine import bring_model
        from heddle.cli.settings import resolve_config

        resolved = resolve_config(config, {"engine.model": name}, ())
        raise typer.Exit(bring_model(resolved.engine.model, output))


@app.command()
def version(json: JsonFlag = False) -> None:
    """Print the version."""
    output = Output(json)
    with reported(output):
        if output.json:
            output.document({"version": __version__})
        else:
            output.text(f"heddle {__version__}")
