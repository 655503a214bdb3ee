"""Commands that turn files into files or findings: ``replay``, ``export``, ``tasks``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from heddle.cli.output import ExitCode, Output
from heddle.control.replay import ReplayReport
from heddle.control.replay import replay as replay_entries
from heddle.environments.taskfiles import load_tasks
from heddle.errors import InvalidRequest, NotFound, StoreError
from heddle.eventlog import read_event_log
from heddle.export.files import ExportFormat, RecordFileError, read_trajectories
from heddle.export.files import export as export_records


def replay(path: Path, output: Output) -> int:
    """Replay an event log; fails at the first event that gives other commands."""
    try:
        log = read_event_log(path)
    except StoreError as exc:
        raise InvalidRequest(str(exc), path="LOG") from exc
    if log.torn_bytes:
        output.note(f"{path}: its last line is torn ({log.torn_bytes} bytes) and was left out")
    report = replay_entries(log.settings, log.entries)
    if output.json:
        output.document({"equal": report.equal, "torn_bytes": log.torn_bytes} | asdict(report))
    else:
        output.text(describe_replay(path, report))
    return ExitCode.OK if report.equal else ExitCode.FAILED


def export(source: Path, fmt: ExportFormat, out: Path, output: Output) -> int:
    """Convert a file of finished records; tells what was left out and why."""
    if not source.is_file():
        raise InvalidRequest(f"{source} is no file", path="TRAJECTORIES.jsonl")
    if source.resolve() == out.resolve():
        raise InvalidRequest("would overwrite its own source", path="--out")
    try:
        summary = export_records(read_trajectories(source), out, fmt)
    except RecordFileError as exc:
        raise InvalidRequest(str(exc), path="TRAJECTORIES.jsonl") from exc
    if output.json:
        output.document({"out": str(out), "format": fmt} | asdict(summary))
        return ExitCode.OK
    output.text(f"{out}: {summary.written} records as {fmt}")
    for reason, count in Counter(excluded.reason for excluded in summary.excluded).items():
        output.text(f"left out: {count} ({reason})")
    return ExitCode.OK


def describe_replay(path: Path, report: ReplayReport) -> str:
    """The outcome of a replay in words."""
    difference = report.difference
    if difference is None:
        return (
            f"{path}: {report.events:,} events, {report.commands:,} commands, the same byte for byte "
            f"({report.ignored} events ignored, {report.open_trajectories} trajectories open at the end)"
        )
    return (
        f"{path}: differs at event {difference.seq} ({difference.what})\n"
        f"  event     {difference.event}\n"
        f"  recorded  {difference.recorded}\n"
        f"  replayed  {difference.replayed}"
    )


def print_tasks(environments: Sequence[str], limit: int | None, seed: int | None, output: Output) -> int:
    """Print shipped tasks as JSON lines."""
    for environment in environments:
        try:
            entries = load_tasks(environment, limit=limit, seed=seed)
        except NotFound as exc:
            raise InvalidRequest(str(exc), path="ENVIRONMENT") from exc
        for entry in entries:
            output.line(entry.as_prompt())
    return ExitCode.OK
