"""``heddle rehearse FILE``: which workers would have been best for a recorded batch, and so for the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Group
from rich.table import Table

from heddle.app import plane_settings
from heddle.cli.output import ExitCode, Output
from heddle.cli.simulate import profiles_of
from heddle.config import HeddleConfig
from heddle.rehearsal.request import Found, RehearsalRequest, answer


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearseOptions:
    """What was typed, by the names of the options; ``None`` was not given."""

    recorded: str
    preset: str | None
    gpus: int
    gpu: str | None
    model: str | None
    profile: Path | None
    groups: int | None
    samples: int | None
    tool_times: str | None
    draws: int
    margin: float
    parts: int | None


def rehearse(config: HeddleConfig, options: RehearseOptions, output: Output) -> int:
    """Rehearse and show it. Raises ``InvalidRequest``, ``ConfigError`` and ``StoreError``."""
    table = profiles_of(options.profile or config.decisions.profile)
    gpu = options.gpu or config.decisions.profile_gpu
    model = options.model or config.decisions.profile_model
    settings = replace(plane_settings(config), profile=table.select(gpu, model))
    request = RehearsalRequest(
        recorded=options.recorded,
        settings=settings,
        gpus=options.gpus,
        table=table,
        gpu=gpu,
        model=model,
        groups=options.groups,
        samples=options.samples,
        tool_times=options.tool_times,
        tool_concurrency=config.tools.concurrency,
        draws=options.draws,
        margin=options.margin,
        parts=options.parts,
    )
    found = answer(request, told=output.note)
    if output.json:
        output.document(_document(found, options.preset))
    else:
        output.text(_describe(found, options.preset))
    return ExitCode.OK


def _document(found: Found, preset: str | None) -> Mapping[str, object]:
    return {**asdict(found), "toml": found.toml(preset)}


def _describe(found: Found, preset: str | None) -> Group:
    share = "" if found.parts == 1 else f", one of {found.parts} equal parts of budget and batch"
    return Group(
        f"{found.simulations} simulations of {found.trajectories:,} trajectories{share}",
        *(f"  {note}" for note in found.notes),
        "",
        _table(found),
        "",
        f"pool {found.pool}, {found.way}: {found.gain:.3f} times as fast as the best that looks at no length",
        "",
        found.toml(preset),
    )


def _table(found: Found) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("pool", "way"):
        table.add_column(heading, no_wrap=True)
    for heading in ("makespan (s)", "draws"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for tried in found.tried:
        seconds = "-" if tried.makespan_s is None else f"{tried.makespan_s:,.1f}"
        table.add_row(tried.pool, tried.way, seconds, str(tried.draws), tried.note)
    return table
