"""Replay: a log's events must give the log's commands again, and the first difference is shown."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from control_rig import Rig, make_batch

from heddle.control.build import PlaneSettings, build_plane
from heddle.control.commands import Command, StopWorker
from heddle.control.events import Event, PoolRequested, StepGenerated, TrajectoryFinished, WorkerReady
from heddle.control.log import LogEntry, encode_entry
from heddle.control.replay import Difference, replay
from heddle.control.state import IgnoreReason
from heddle.errors import ConfigError
from heddle.eventlog import EventLogWriter
from heddle.types import StopReason, TrajectoryId, TrajectoryPhase, WorkerId

SETTINGS = PlaneSettings(pool="1", slots=2)

HISTORY: list[Event] = [
    PoolRequested(1),
    WorkerReady(WorkerId("w0"), 2, None),
    make_batch("a", 3),
    StepGenerated(TrajectoryId("a0"), WorkerId("w0"), 0, 100, 0, 5),
    StepGenerated(TrajectoryId("a0"), WorkerId("w0"), 0, 100, 0, 5),
    TrajectoryFinished(TrajectoryId("a0"), StopReason.COMPLETED),
]


def record() -> list[LogEntry]:
    """The log of ``HISTORY``; its fifth event is a duplicate."""
    plane = build_plane(SETTINGS)
    entries = []
    for seq, event in enumerate(HISTORY):
        commands = tuple(plane.handle(event, float(seq)))
        entries.append(LogEntry(seq, float(seq), event, commands, plane.last_ignored))
    return entries


def test_a_faithful_log_replays_equal() -> None:
    """Counts of events, commands and ignored events, and what was left open."""
    report = replay(SETTINGS, record())

    assert report.equal
    assert (report.events, report.commands, report.ignored, report.open_trajectories) == (6, 4, 1, 2)


def test_an_empty_log_replays_equal() -> None:
    """A coordinator that was killed at once left a header only."""
    report = replay(SETTINGS, [])

    assert (report.events, report.equal) == (0, True)


def test_the_first_difference_is_shown_with_both_sides() -> None:
    """Replay ends at the first event whose commands differ."""
    entries = record()
    entries[3] = replace(entries[3], commands=(StopWorker(WorkerId("w0")),))

    report = replay(SETTINGS, entries)

    assert report.events == 4
    assert report.difference == Difference(
        seq=3,
        what="commands",
        event=repr(HISTORY[3]),
        recorded='[{"type":"StopWorker","worker_id":"w0"}]',
        replayed='[{"type":"Generate","trajectory_id":"a2","worker_id":"w0","step_index":0,"priority":-3.0,'
        '"prediction":null}]',
    )


def test_an_event_that_was_ignored_must_be_ignored_again() -> None:
    """The reason is part of what is compared."""
    entries = record()
    entries[4] = replace(entries[4], ignored=IgnoreReason.WRONG_STEP)

    difference = replay(SETTINGS, entries).difference

    assert difference is not None
    assert (difference.seq, difference.recorded, difference.replayed) == (
        4,
        "ignored: wrong_step",
        "ignored: wrong_phase",
    )


def test_a_missing_event_is_noticed() -> None:
    """Sequence numbers have no gaps."""
    entries = record()
    del entries[4]

    difference = replay(SETTINGS, entries).difference

    assert difference is not None
    assert (difference.what, difference.recorded, difference.replayed) == ("seq", "5", "4")


def test_other_settings_give_other_commands() -> None:
    """The settings are part of what makes a history."""
    report = replay(replace(SETTINGS, slots=1), record())

    assert report.difference is not None
    assert (report.difference.seq, report.difference.what) == (0, "commands")


@pytest.mark.parametrize("part", ["scheduler", "placer", "allocator", "migration", "predictor"])
def test_unknown_parts_are_refused_with_the_names_there_are(part: str) -> None:
    """A misspelt part is a ConfigError that lists the choices."""
    changed = {
        "scheduler": replace(SETTINGS, scheduler="nonsense"),
        "placer": replace(SETTINGS, placer="nonsense"),
        "allocator": replace(SETTINGS, allocator="nonsense"),
        "migration": replace(SETTINGS, migration="nonsense"),
        "predictor": replace(SETTINGS, predictor="nonsense"),
    }

    with pytest.raises(ConfigError, match=r"unknown .* 'nonsense'; choose one of \w+"):
        build_plane(changed[part])


def go_on(rig: Rig, name: str, rng: random.Random) -> None:
    """The next thing that may happen to a trajectory."""
    match rig.trajectory(name).phase:
        case TrajectoryPhase.GENERATING if rng.random() < 0.1:
            rig.interrupt(name)
        case TrajectoryPhase.GENERATING:
            rig.step(name, output=rng.randrange(50))
        case TrajectoryPhase.BETWEEN if rng.random() < 0.3:
            rig.finish(name)
        case TrajectoryPhase.BETWEEN:
            rig.tools_started(name)
        case TrajectoryPhase.IN_TOOL:
            rig.tools_finished(name)
        case _:
            pass


class RecordingRig(Rig):
    """A rig that keeps the lines of its log."""

    def __init__(self, settings: PlaneSettings) -> None:
        super().__init__(pool=settings.pool, slots=settings.slots)
        self.lines: list[bytes] = []

    def send(self, event: Event) -> list[Command]:
        commands = super().send(event)
        self.lines.append(encode_entry(len(self.lines), self.now, event, commands, self.plane.last_ignored))
        return commands


def test_a_log_replays_equal_in_another_process(tmp_path: Path) -> None:
    """No decision hangs on the order of a set or on anything else that differs between processes."""
    settings = PlaneSettings(pool="1+1+1", slots=3)
    rig, rng = RecordingRig(settings), random.Random(7)
    rig.pool(3)
    for batch in range(3):
        rig.submit(f"b{batch}-", 30)
        for _ in range(200):
            names = list(rig.plane.state.trajectories)
            go_on(rig, names[rng.randrange(len(names))], rng)
        rig.lost(f"w{batch}")
        if batch > 0:
            rig.ready(f"w{batch - 1}")
    path = tmp_path / "run.jsonl"
    with EventLogWriter(path, settings) as writer:
        for line in rig.lines:
            writer.append(line)
    program = f"""
from pathlib import Path
from heddle.control.replay import replay
from heddle.eventlog import read_event_log

log = read_event_log(Path({str(path)!r}))
report = replay(log.settings, log.entries)
print(report.events, report.difference)
"""
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            check=True,
            timeout=60,
            capture_output=True,
            text=True,
            env={"PYTHONHASHSEED": hash_seed},
        )
        assert done.stdout == f"{len(rig.lines)} None\n"
