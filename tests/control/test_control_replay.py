"""Replay: a log's events must give the log's commands again, and the first difference is shown."""

from __future__ import annotations

from dataclasses import replace

import pytest
from control_rig import make_batch

from heddle.control.build import PlaneSettings, build_plane
from heddle.control.commands import StopWorker
from heddle.control.events import Event, PoolRequested, StepGenerated, TrajectoryFinished, WorkerReady
from heddle.control.log import LogEntry
from heddle.control.replay import Difference, replay
from heddle.control.state import IgnoreReason
from heddle.errors import ConfigError
from heddle.types import StopReason, TrajectoryId, WorkerId

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
