"""Commands about this machine: ``doctor`` and ``model``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from heddle.cli.output import ExitCode, Output
from heddle.cli.settings import resolve_config
from heddle.doctor import Check, bad_config, can_run, diagnose
from heddle.engines.embedded.model import ensure_model
from heddle.errors import ConfigError
from heddle.machine import examine


def doctor(
    config_path: Path | None, options: Mapping[str, object | None], assignments: Sequence[str], output: Output
) -> int:
    """Diagnose this machine; fails only where the main job cannot run."""
    try:
        config = resolve_config(config_path, options, assignments)
    except ConfigError as exc:
        checks = [bad_config(exc)]
    else:
        checks = diagnose(examine(config))
    runs = can_run(checks)
    if output.json:
        output.document({"can_run": runs, "checks": [asdict(check) for check in checks]})
    else:
        output.text(checks_table(checks))
        output.text("Heddle can run here." if runs else "Heddle cannot run here yet: mend what failed.")
    return ExitCode.OK if runs else ExitCode.FAILED


def checks_table(checks: Sequence[Check]) -> Table:
    """One line for each check; the remedy stands below its finding."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column("status", no_wrap=True)
    table.add_column("name", no_wrap=True, style="bold")
    table.add_column("finding", overflow="fold")
    for check in checks:
        remedy = f"\n  mend: {check.remedy}" if check.remedy else ""
        table.add_row(check.status.value, check.name, check.finding + remedy)
    return table


def bring_model(name: str, output: Output) -> int:
    """Bring a model into the cache where it is not there yet, and tell its path."""
    path = ensure_model(name, progress=output.note)
    if output.json:
        output.document({"model": name, "path": str(path)})
    else:
        output.text(f"{name}: {path}")
    return ExitCode.OK
