"""Traces of agents: one trajectory a line, its steps in order.

    {"trajectory_id": "a/0", "prompt_id": "a", "steps": [{"prompt_tokens": 512, "output_tokens": 80,
     "tool_name": "search", "tool_seconds": 1.5}, ...]}

A step is one generation and at most one round of tools. ``prompt_tokens`` were appended to the context before
it; ``tool_seconds`` is null where it was not recorded. Optional: ``context_tokens`` (the whole context before
the generation), ``context_shrunk_by`` (where it got smaller), and ``turn``, the number of the user's turns
before: then every turn becomes a trajectory of its own, because a rollout has no user. Other keys are
ignored.

A played context only grows. Where the recorded one shrank, what is appended afterwards counts against that
first, so that it comes back to the recorded length; notes say how much was left out of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise

from pydantic import TypeAdapter

from heddle.errors import InvalidRequest
from heddle.simulate.readers.lines import Count, Name, Seconds, decode, notes_of, numbered, some
from heddle.simulate.workload import Workload, WorkStep, WorkTrajectory
from heddle.types import GroupId, TrajectoryId

TOOLS_JOIN = "+"
"""Between the names of tools that one message called."""


@dataclass(frozen=True, slots=True)
class _Step:
    prompt_tokens: Count
    output_tokens: Count
    tool_name: str | None
    tool_seconds: Seconds | None
    context_tokens: Count | None = None
    context_shrunk_by: Count = 0
    turn: Count | None = None


@dataclass(frozen=True, slots=True)
class _Line:
    trajectory_id: Name
    prompt_id: Name
    steps: list[_Step]


_LINE = TypeAdapter(_Line)


@dataclass(slots=True)
class _Tally:
    """What must be said of a file: where playing it differs from what was recorded."""

    sessions: int = 0
    turns: int = 0
    calls: int = 0
    shrunk: int = 0
    absorbed: int = 0
    """Appended tokens that filled what had shrunk."""
    most_excess: int = 0
    """Tokens by which a context exceeds what was recorded, at most."""
    silent: int = 0
    unanswered: int = 0
    lines: dict[str, str] = field(default_factory=dict)
    """Where each trajectory stands."""

    def notes(self) -> tuple[str, ...]:
        turns, sessions = some(self.turns, "turn", "turns"), some(self.sessions, "session", "sessions")
        shrunk = some(self.shrunk, "call", "calls")
        unanswered = some(self.unanswered, "tool call", "tool calls")
        return notes_of(
            (
                self.turns - self.sessions,
                f"{turns} of {sessions}, each a trajectory whose prompt is the context at its start",
            ),
            (
                self.shrunk,
                f"{shrunk} of {self.calls:,} shrank their context; played as if it only grew: up to "
                f"{self.most_excess:,} tokens too long, {self.absorbed:,} appended tokens left out",
            ),
            (self.silent, f"{some(self.silent, 'call', 'calls')} sampled nothing, played as one token"),
            (self.unanswered, f"{unanswered} after a last generation, never answered, not played"),
        )


def parse_trace(content: bytes, *, name: str) -> Workload:
    """A workload in which everything arrives at once.

    ``name`` stands for the file in messages and names the workload. Raises ``InvalidRequest``.
    """
    tally = _Tally()
    trajectories: list[WorkTrajectory] = []
    for where, line in numbered(content, name):
        row = decode(_LINE, line, where)
        _check(row, where, tally)
        trajectories += _trajectories(row, tally)
    if not trajectories:
        raise InvalidRequest("holds no trajectory", path=name)
    return Workload(name, tuple(trajectories), tally.notes())


def _check(row: _Line, where: str, tally: _Tally) -> None:
    if not row.steps:
        raise InvalidRequest("a trajectory has at least one step", path=f"{where}: steps")
    earlier = tally.lines.setdefault(row.trajectory_id, where)
    if earlier != where:
        raise InvalidRequest(
            f"{row.trajectory_id!r} is that of {earlier} too", path=f"{where}: trajectory_id"
        )
    for index, (before, after) in enumerate(pairwise(row.steps), 1):
        if (before.turn is None) is not (after.turn is None) or (after.turn or 0) < (before.turn or 0):
            raise InvalidRequest(
                f"turns must not fall, got {after.turn} after {before.turn}",
                path=f"{where}: steps.{index}.turn",
            )


def _trajectories(row: _Line, tally: _Tally) -> Iterator[WorkTrajectory]:
    """One for each turn, or the one that there is."""
    tally.sessions += 1
    context = 0
    for turn, members in groupby(row.steps, key=lambda step: step.turn):
        steps = list(members)
        tally.turns += 1
        prompt = context + steps[0].prompt_tokens
        if steps[0].context_tokens is not None:
            prompt = steps[0].context_tokens
        played = _played(steps, prompt, tally)
        # The recorded context goes on where this turn ended; the played one may be longer.
        last = steps[-1]
        before_last = last.context_tokens if last.context_tokens is not None else _context_before(played)
        context = before_last + last.output_tokens
        suffix = "" if turn is None else f"/{turn}"
        yield WorkTrajectory(
            TrajectoryId(row.trajectory_id + suffix), GroupId(row.prompt_id + suffix), tuple(played)
        )


def _context_before(played: Sequence[WorkStep]) -> int:
    """Tokens before the last generation."""
    return sum(step.prompt_tokens + step.output_tokens for step in played) - played[-1].output_tokens


def _played(steps: Sequence[_Step], prompt_tokens: int, tally: _Tally) -> list[WorkStep]:
    played: list[WorkStep] = []
    excess = 0
    for index, step in enumerate(steps):
        appended = prompt_tokens if index == 0 else step.prompt_tokens
        if index and step.context_shrunk_by:
            tally.shrunk += 1
            excess += step.context_shrunk_by
        absorbed = min(excess, appended) if index else 0
        excess -= absorbed
        tally.calls += 1
        tally.absorbed += absorbed
        tally.most_excess = max(tally.most_excess, excess)
        tally.silent += step.output_tokens == 0
        names, seconds = _tools(step, last=index == len(steps) - 1, tally=tally)
        played.append(WorkStep(appended - absorbed, max(step.output_tokens, 1), names, seconds))
    return played


def _tools(step: _Step, *, last: bool, tally: _Tally) -> tuple[tuple[str, ...], float | None]:
    """Names and seconds of what runs after a step."""
    if not step.tool_name:
        return (), 0.0
    if last and step.tool_seconds is None:
        # Nothing in the trace waits for it, so its time can neither be known nor matter to the next step.
        tally.unanswered += 1
        return (), 0.0
    return tuple(step.tool_name.split(TOOLS_JOIN)), step.tool_seconds
