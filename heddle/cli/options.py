"""The options that several commands share: names, help, panels. Types only; no work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

ExportFormatName = Literal["jsonl", "parquet", "verl", "slime"]
ToolParserName = Literal["hermes", "openai", "fenced"]

EngineName = Literal["embedded", "sglang", "fake"]

_SERVER_PANEL = "Server"
_ENGINE_PANEL = "Engine"
_BATCH_PANEL = "Batch"
_LIMITS_PANEL = "Limits of each trajectory"
_CONFIG_PANEL = "Configuration"


def _folder(text: str) -> Path:
    """An empty name would be the folder at hand, and comes from a variable that is not set."""
    if not text:
        raise typer.BadParameter("should not be empty")
    return Path(text)


JsonFlag = Annotated[bool, typer.Option("--json", help="JSON on stdout and nothing else there.")]
TasksArgument = Annotated[
    str, typer.Argument(metavar="TASKS.jsonl", help="One task a line; - reads standard input.")
]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="TOML file.", rich_help_panel=_CONFIG_PANEL)
]
SetOption = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="Override one key; may be repeated.",
        rich_help_panel=_CONFIG_PANEL,
    ),
]
DataDirOption = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="FOLDER",
        parser=_folder,
        help="Store, event logs and worker logs.",
        rich_help_panel=_CONFIG_PANEL,
    ),
]
EngineOption = Annotated[
    EngineName | None,
    typer.Option("--engine", help="What generates.", show_default="embedded", rich_help_panel=_ENGINE_PANEL),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="MODEL",
        help="A known name, a GGUF file, or a directory.",
        rich_help_panel=_ENGINE_PANEL,
    ),
]
GpusOption = Annotated[
    str | None,
    typer.Option(
        "--gpus",
        metavar="INDICES",
        help="GPUs for SGLang servers: auto, or such as 0-3,6.",
        rich_help_panel=_ENGINE_PANEL,
    ),
]
WorkersOption = Annotated[
    list[str],
    typer.Option(
        "--worker",
        metavar="URL",
        help="Use an SGLang server that runs already, and start none; may be repeated.",
        rich_help_panel=_ENGINE_PANEL,
    ),
]
PoolOption = Annotated[
    str | None,
    typer.Option(
        "--pool",
        metavar="DEGREES",
        help="Workers by parallel degree, joined by +: 1+1 is two workers of one thread (or GPU) each.",
        rich_help_panel=_CONFIG_PANEL,
    ),
]
SlotsOption = Annotated[
    int | None,
    typer.Option(
        "--slots", help="Generations that run at once on one worker.", rich_help_panel=_CONFIG_PANEL
    ),
]
PresetOption = Annotated[
    str | None,
    typer.Option(
        "--preset",
        metavar="NAME",
        help="Named choices of scheduler, placer and the rest; heddle presets lists them.",
        rich_help_panel=_CONFIG_PANEL,
    ),
]
UrlOption = Annotated[
    str,
    typer.Option("--url", envvar="HEDDLE_URL", help="Where the server is.", rich_help_panel=_SERVER_PANEL),
]
TokenOption = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar="HEDDLE_TOKEN",
        show_envvar=True,
        help="Bearer token; better given by the variable, which other users cannot see.",
        rich_help_panel=_SERVER_PANEL,
    ),
]
DEFAULT_URL = "http://127.0.0.1:8765"

BatchIdOption = Annotated[
    str | None,
    typer.Option(
        "--batch-id",
        help="Names the batch; the same id again is the same batch.",
        rich_help_panel=_BATCH_PANEL,
    ),
]
EnvironmentOption = Annotated[
    str | None,
    typer.Option("--environment", help="For tasks that name none.", rich_help_panel=_BATCH_PANEL),
]
SamplesOption = Annotated[
    int | None, typer.Option("--samples", help="Trajectories for each prompt.", rich_help_panel=_BATCH_PANEL)
]
ConstrainedOption = Annotated[
    bool | None,
    typer.Option(
        "--constrained/--no-constrained",
        help="Force every step to be one well-formed tool call.",
        show_default="no",
        rich_help_panel=_BATCH_PANEL,
    ),
]
ParserOption = Annotated[
    ToolParserName | None,
    typer.Option("--parser", help="How the model writes its tool calls.", rich_help_panel=_BATCH_PANEL),
]
TemperatureOption = Annotated[float | None, typer.Option("--temperature", rich_help_panel=_BATCH_PANEL)]
SeedOption = Annotated[
    int | None, typer.Option("--seed", help="Base seed of the sampling.", rich_help_panel=_BATCH_PANEL)
]
MaxStepsOption = Annotated[int | None, typer.Option("--max-steps", rich_help_panel=_LIMITS_PANEL)]
MaxTokensOption = Annotated[
    int | None, typer.Option("--max-tokens", help="Sampled tokens in all.", rich_help_panel=_LIMITS_PANEL)
]
MaxTokensPerStepOption = Annotated[
    int | None, typer.Option("--max-tokens-per-step", rich_help_panel=_LIMITS_PANEL)
]
MaxToolCallsOption = Annotated[int | None, typer.Option("--max-tool-calls", rich_help_panel=_LIMITS_PANEL)]
TimeoutOption = Annotated[
    float | None,
    typer.Option(
        "--timeout", metavar="SECONDS", help="Wall clock of each trajectory.", rich_help_panel=_LIMITS_PANEL
    ),
]
BatchTimeoutOption = Annotated[
    float | None,
    typer.Option(
        "--batch-timeout",
        metavar="SECONDS",
        help="Wall clock of the batch; what is open then is ended.",
        rich_help_panel=_LIMITS_PANEL,
    ),
]


BatchArgument = Annotated[str, typer.Argument(metavar="BATCH", help="Id of a batch.")]
OptionalBatchArgument = Annotated[str | None, typer.Argument(metavar="[BATCH]", help="All without one.")]
