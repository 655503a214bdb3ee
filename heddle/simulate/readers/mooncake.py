"""Mooncake traces: one request a line, times in milliseconds.

    {"timestamp": 3052, "input_length": 7234, "output_length": 794, "hash_ids": [0, 28, 29]}

Without a ``session_id`` every request is a trajectory of one step. Requests of one session are the steps of
one trajectory, in the order of the file: ``delay`` (or ``tool_wait_ms``) is what passes between the end of
one and the next. ``input_length`` is the whole prompt of the request, what came before included. ``hash_ids``
name the blocks of that prompt: equal first prompts make a group. ``input_tokens``, ``output_tokens``,
``created_time`` and ``delay_ms`` are understood as well.

Refused: sessions that wait for one another or branch, and later requests whose blocks have nothing in common
with the request before (there ``input_length`` seems to count only what is new).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import AliasChoices, Field, TypeAdapter

from heddle.errors import InvalidRequest
from heddle.simulate.readers.lines import Count, Milliseconds, decode, notes_of, numbered, some
from heddle.simulate.workload import Workload, WorkStep, WorkTrajectory
from heddle.types import GroupId, TrajectoryId

UNRECORDED = "unrecorded"
"""The name of a tool of which only the time is known."""


@dataclass(frozen=True, slots=True)
class _Request:
    input_length: Annotated[Count, Field(validation_alias=AliasChoices("input_length", "input_tokens"))]
    output_length: Annotated[Count, Field(validation_alias=AliasChoices("output_length", "output_tokens"))]
    timestamp: Annotated[
        Milliseconds | None, Field(validation_alias=AliasChoices("timestamp", "created_time"))
    ] = None
    delay: Annotated[Milliseconds | None, Field(validation_alias=AliasChoices("delay", "delay_ms"))] = None
    tool_wait_ms: Milliseconds | None = None
    hash_ids: list[int] | None = None
    session_id: str | int | None = None
    request_id: str | int | None = None
    wait_for: str | int | list[str | int] | None = None
    branches: list[str | int] | None = None
    prefix_reset: bool = False


_REQUEST = TypeAdapter(_Request)


@dataclass(slots=True)
class _Session:
    """One trajectory, as far as it was read."""

    identity: str
    arrival_ms: float | None
    first: tuple[int, tuple[int, ...]]
    """Length and blocks of its first prompt."""
    steps: list[WorkStep]
    last: _Request
    context: int
    """Played, after the last request; never less than what was recorded."""


@dataclass(slots=True)
class _Tally:
    sessions: dict[str, _Session] = field(default_factory=dict)
    shrunk: int = 0
    silent: int = 0
    untimed: int = 0

    def notes(self) -> tuple[str, ...]:
        calls = sum(len(session.steps) for session in self.sessions.values())
        shared = sum(bool(session.first[1]) for session in self.sessions.values())
        return notes_of(
            (
                self.shrunk,
                f"{some(self.shrunk, 'request', 'requests')} of {calls:,} shrank their context; played as if "
                "it only grew",
            ),
            (self.silent, f"{some(self.silent, 'request', 'requests')} sampled nothing, played as one token"),
            (
                self.untimed,
                f"{some(self.untimed, 'request', 'requests')} of sessions without a delay: the time between "
                "them is unknown",
            ),
            (shared, "prompts that share only a part of their blocks are played as if they shared none"),
        )


def parse_mooncake(content: bytes, *, name: str) -> Workload:
    """A workload with the recorded arrivals. Raises ``InvalidRequest``."""
    tally = _Tally()
    for where, line in numbered(content, name):
        request = decode(_REQUEST, line, where)
        identity = where.removeprefix(f"{name}:") if request.session_id is None else str(request.session_id)
        key = f"r{identity}" if request.session_id is None else f"s{identity}"
        session = tally.sessions.get(key)
        if session is None:
            tally.sessions[key] = _begin(key, request, where, tally)
        else:
            _go_on(session, request, where, tally)
    if not tally.sessions:
        raise InvalidRequest("holds no request", path=name)
    return Workload(name, _trajectories(list(tally.sessions.values()), name), tally.notes())


def _begin(key: str, request: _Request, where: str, tally: _Tally) -> _Session:
    _refuse_dependencies(request, None, where)
    if request.input_length == 0:
        raise InvalidRequest("a first prompt has at least one token", path=f"{where}: input_length")
    first = (request.input_length, tuple(request.hash_ids or ()))
    session = _Session(key, request.timestamp, first, [], request, 0)
    _append(session, request, request.input_length, tally)
    return session


def _go_on(session: _Session, request: _Request, where: str, tally: _Tally) -> None:
    before = session.last
    _refuse_dependencies(request, before, where)
    if not request.prefix_reset:
        _check_prefix(before, request, where)
    if request.prefix_reset or request.input_length < session.context:
        tally.shrunk += 1
    session.steps[-1] = _with_tool(session.steps[-1], _wait_s(request))
    tally.untimed += _wait_s(request) is None
    _append(session, request, max(0, request.input_length - session.context), tally)


def _append(session: _Session, request: _Request, appended: int, tally: _Tally) -> None:
    tally.silent += request.output_length == 0
    session.steps.append(WorkStep(appended, max(request.output_length, 1)))
    session.context += appended + max(request.output_length, 1)
    session.last = request


def _with_tool(step: WorkStep, seconds: float | None) -> WorkStep:
    return WorkStep(step.prompt_tokens, step.output_tokens, (UNRECORDED,), seconds)


def _wait_s(request: _Request) -> float | None:
    milliseconds = request.tool_wait_ms if request.delay is None else request.delay
    return None if milliseconds is None else milliseconds / 1000.0


def _check_prefix(before: _Request, request: _Request, where: str) -> None:
    """Refuse what cannot be the whole prompt after ``before``."""
    if before.hash_ids and request.hash_ids:
        if before.hash_ids[0] != request.hash_ids[0]:
            raise InvalidRequest(
                "shares no block with the request before in its session, nor says prefix_reset; "
                "whole prompts are expected",
                path=f"{where}: hash_ids",
            )
    elif request.input_length < before.input_length:
        raise InvalidRequest(
            f"{request.input_length} is less than the {before.input_length} of the request before in its "
            "session; whole prompts are expected, and there are no hash_ids to show what was dropped",
            path=f"{where}: input_length",
        )


def _refuse_dependencies(request: _Request, before: _Request | None, where: str) -> None:
    if request.branches:
        raise InvalidRequest("branches between sessions cannot be played", path=f"{where}: branches")
    waits = request.wait_for
    named = waits if isinstance(waits, list) else [] if waits is None else [waits]
    allowed = [] if before is None or before.request_id is None else [before.request_id]
    if any(other not in allowed for other in named):
        raise InvalidRequest(
            f"waits for {named[0]!r}, which is not the request before in its session",
            path=f"{where}: wait_for",
        )


def _trajectories(sessions: Sequence[_Session], name: str) -> tuple[WorkTrajectory, ...]:
    stamped = [session.arrival_ms for session in sessions if session.arrival_ms is not None]
    if stamped and len(stamped) < len(sessions):
        missing = next(session.identity for session in sessions if session.arrival_ms is None)
        raise InvalidRequest(
            f"session {missing[1:]!r} has no timestamp at its first request, others have", path=name
        )
    origin = min(stamped, default=0.0)
    prompts: dict[tuple[int, tuple[int, ...]], GroupId] = {}
    made = []
    for session in sessions:
        group = GroupId(session.identity)
        if session.first[1]:
            group = prompts.setdefault(session.first, group)
        arrival_s = 0.0 if session.arrival_ms is None else (session.arrival_ms - origin) / 1000.0
        made.append(
            WorkTrajectory(TrajectoryId(session.identity), group, tuple(session.steps), arrival_s=arrival_s)
        )
    return tuple(made)
