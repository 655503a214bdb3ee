"""Replay: the events of a log, fed to a fresh control plane, must give the commands of the log.

That one property guards the purity of the control plane, and makes a test of every incident.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from heddle.control.build import PlaneSettings, build_plane
from heddle.control.invariants import InvariantViolation
from heddle.control.log import LogEntry, encode_commands
from heddle.control.plane import ControlPlane
from heddle.control.state import IgnoreReason

VISITS_PER_EVENT = 64
"""Open trajectories that checking may visit per replayed event: about as costly as the event itself."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first event after which log and replay disagree."""

    seq: int
    what: str
    """commands, ignored, seq, or invariant."""
    event: str
    recorded: str
    replayed: str


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What came of a replay; it ends at the first difference."""

    events: int
    commands: int
    ignored: int
    """Events that changed nothing, then as now."""
    open_trajectories: int
    """Not finished at the end of the log: above zero where the coordinator was killed."""
    difference: Difference | None

    @property
    def equal(self) -> bool:
        """Whether every event gave the same commands, byte for byte."""
        return self.difference is None


def replay(
    settings: PlaneSettings, entries: Iterable[LogEntry], *, check_every: int | None = None
) -> ReplayReport:
    """Replay ``entries`` and compare, with the invariants checked on the way and at the end.

    They are checked after every ``check_every`` events (0: only at the end). By default after each event
    while few trajectories are open, and then ever more seldom: a check visits them all, and a log of
    thousands would take hours. Raises ``ConfigError`` where ``settings`` name what does not exist.
    """
    plane = build_plane(settings)
    events = commands = ignored = unchecked = 0
    difference = None
    for entry in entries:
        difference, issued = _replay_one(plane, entry, events)
        events += 1
        commands += issued
        ignored += entry.ignored is not None
        unchecked += 1
        if difference is None and _is_due(unchecked, plane, check_every):
            difference = _check(plane, entry)
            unchecked = 0
        if difference is not None:
            break
        last = entry
    if difference is None and unchecked:
        difference = _check(plane, last)
    return ReplayReport(events, commands, ignored, len(plane.state.trajectories), difference)


def _replay_one(plane: ControlPlane, entry: LogEntry, expected_seq: int) -> tuple[Difference | None, int]:
    event = repr(entry.event)
    if entry.seq != expected_seq:
        return Difference(expected_seq, "seq", event, str(entry.seq), str(expected_seq)), 0
    commands = plane.handle(entry.event, entry.now)
    recorded, replayed = encode_commands(entry.commands), encode_commands(commands)
    if recorded != replayed:
        return Difference(entry.seq, "commands", event, recorded.decode(), replayed.decode()), 0
    if entry.ignored != plane.last_ignored:
        reasons = _reason(entry.ignored), _reason(plane.last_ignored)
        return Difference(entry.seq, "ignored", event, *reasons), 0
    return None, len(commands)


def _is_due(unchecked: int, plane: ControlPlane, check_every: int | None) -> bool:
    if check_every is None:
        return unchecked * VISITS_PER_EVENT >= len(plane.state.trajectories)
    return check_every > 0 and unchecked >= check_every


def _check(plane: ControlPlane, entry: LogEntry) -> Difference | None:
    try:
        plane.state.check_invariants()
    except InvariantViolation as exc:
        return Difference(entry.seq, "invariant", repr(entry.event), "invariants hold", str(exc))
    return None


def _reason(ignored: IgnoreReason | None) -> str:
    return "accepted" if ignored is None else f"ignored: {ignored}"
