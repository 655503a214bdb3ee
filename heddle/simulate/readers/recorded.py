"""Heddle's own event logs: what a live run was asked to do, on which workers, and how long it took.

The segments of an interrupted step are one step again. Tool times reach from the call to the observation, so
they include the wait for a free tool that the recorded run had. Trajectories that the log leaves without a
single token are left out; those that were cancelled or still open are played as far as they came.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

from heddle.control.build import PlaneSettings
from heddle.control.commands import Generate, StartWorker
from heddle.control.events import (
    BatchSubmitted,
    Event,
    GenerationInterrupted,
    StepGenerated,
    ToolsFinished,
    ToolsStarted,
    TrajectoryEnding,
    TrajectoryFinished,
    TrajectorySpec,
    WorkerReady,
)
from heddle.control.log import LogEntry, decode_entry, decode_header
from heddle.errors import InvalidRequest, StoreError
from heddle.simulate.readers.lines import notes_of, some
from heddle.simulate.workload import Workload, WorkStep, WorkTrajectory
from heddle.types import StopReason, TrajectoryId, TrajectoryStatus, WorkerId, WorkerSpec


@dataclass(frozen=True, slots=True)
class Generation:
    """One stay of a trajectory in a slot."""

    worker_id: WorkerId
    began_at: float
    ended_at: float
    output_tokens: int
    uncached_tokens: int | None
    """Prompt tokens that were computed for it; ``None`` where it was interrupted and nobody said."""


@dataclass(frozen=True, slots=True)
class RecordedWorker:
    """A worker that was started."""

    spec: WorkerSpec
    kv_capacity_tokens: int | None = None
    """As it said when it was ready; ``None`` where it did not."""
    prefix_capacity_tokens: int | None = None
    """What it keeps of trajectories between their steps; ``None``: the same."""


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """What an event log says of its run."""

    settings: PlaneSettings
    workload: Workload
    workers: tuple[RecordedWorker, ...]
    generations: tuple[Generation, ...]
    """In the order of their ends."""
    overhead_s: float
    """Median time between the end of a generation and the start of its tools; 0.0 without any."""
    makespan_s: float
    """From the first batch to the end of the last trajectory, without rewards and records."""


@dataclass(slots=True)
class _Trajectory:
    spec: TrajectorySpec
    submitted_at: float
    steps: list[WorkStep] = field(default_factory=list)
    appended: int = 0
    """Tokens that came into the context since the last step."""
    partial: int = 0
    """Tokens of the interrupted segments of the step that runs."""
    granted_at: float | None = None
    generated_at: float = 0.0
    tools_at: float | None = None
    tool_names: tuple[str, ...] = ()
    open: bool = True


@dataclass(slots=True)
class _Reading:
    trajectories: dict[TrajectoryId, _Trajectory] = field(default_factory=dict)
    workers: dict[WorkerId, RecordedWorker] = field(default_factory=dict)
    generations: list[Generation] = field(default_factory=list)
    overheads: list[float] = field(default_factory=list)
    began_at: float | None = None
    ended_at: float = 0.0
    cut_short: int = 0
    recovered: int = 0
    silent: int = 0


def parse_recorded(content: bytes, *, name: str) -> RecordedRun:
    """Read a log; an incomplete last line is left out. Raises ``InvalidRequest`` for a foreign line."""
    *lines, tail = content.split(b"\n")
    if not lines:
        raise InvalidRequest("is no event log: it has no complete line", path=name)
    try:
        settings = decode_header(lines[0])
    except StoreError as exc:
        raise InvalidRequest(str(exc), path=f"{name}:1") from exc
    reading = _Reading()
    for where, entry in _entries(lines[1:], name):
        try:
            if entry.ignored is None:
                _take(reading, entry)
        except KeyError as exc:
            raise InvalidRequest(f"no batch before it has a trajectory {exc}", path=where) from exc
    return RecordedRun(
        settings=settings,
        workload=_workload(reading, name, torn=len(tail)),
        workers=tuple(reading.workers.values()),
        generations=tuple(reading.generations),
        overhead_s=median(reading.overheads) if reading.overheads else 0.0,
        makespan_s=max(0.0, reading.ended_at - (reading.began_at or 0.0)),
    )


def _entries(lines: list[bytes], name: str) -> Iterator[tuple[str, LogEntry]]:
    before = -math.inf
    for number, line in enumerate(lines, 2):
        where = f"{name}:{number}"
        try:
            entry = decode_entry(line)
        except StoreError as exc:
            raise InvalidRequest(str(exc), path=where) from exc
        if entry.seq != number - 2:
            raise InvalidRequest(f"event {number - 2} is missing: this is {entry.seq}", path=f"{where}: seq")
        if not before <= entry.now < math.inf:
            raise InvalidRequest(f"time goes back from {before} to {entry.now}", path=f"{where}: now")
        if min(_counts(entry.event)) < 0:
            raise InvalidRequest("counts tokens below 0", path=f"{where}: event")
        before = entry.now
        yield where, entry


def _counts(event: Event) -> tuple[int, ...]:
    """All numbers of tokens that are read of an event; at least one."""
    if isinstance(event, BatchSubmitted):
        return (0, *(spec.context_tokens for spec in event.trajectories))
    if isinstance(event, StepGenerated):
        return event.prompt_tokens, event.cached_tokens, event.output_tokens, event.forced_tokens
    if isinstance(event, GenerationInterrupted):
        return (event.output_tokens,)
    if isinstance(event, ToolsFinished):
        return (event.appended_tokens,)
    return (0,)


def _take(reading: _Reading, entry: LogEntry) -> None:
    """One event and the grants that it gave."""
    event, now = entry.event, entry.now
    if isinstance(event, BatchSubmitted):
        _submitted(reading, event, now)
    elif isinstance(event, WorkerReady):
        worker = reading.workers.get(event.worker_id)
        if worker is not None:
            told = (event.kv_capacity_tokens, event.prefix_capacity_tokens)
            reading.workers[event.worker_id] = RecordedWorker(worker.spec, *told)
    elif isinstance(event, StepGenerated | GenerationInterrupted):
        _generated(reading, event, now)
    elif isinstance(event, ToolsStarted):
        trajectory = reading.trajectories[event.trajectory_id]
        trajectory.tools_at, trajectory.tool_names = now, event.tool_names
        reading.overheads.append(now - trajectory.generated_at)
    elif isinstance(event, ToolsFinished):
        _observed(reading.trajectories[event.trajectory_id], event, now)
    elif isinstance(event, TrajectoryEnding):
        _ended(reading, reading.trajectories[event.trajectory_id], now)
    elif isinstance(event, TrajectoryFinished):
        reason = event.stop_reason
        reading.cut_short += reason is StopReason.TIMED_OUT or reason.status in (
            TrajectoryStatus.ABORTED,
            TrajectoryStatus.FAILED,
        )
        _ended(reading, reading.trajectories[event.trajectory_id], now)
    for command in entry.commands:
        if isinstance(command, StartWorker):
            reading.workers.setdefault(command.spec.worker_id, RecordedWorker(command.spec))
        elif isinstance(command, Generate):
            reading.trajectories[command.trajectory_id].granted_at = now


def _submitted(reading: _Reading, event: BatchSubmitted, now: float) -> None:
    if reading.began_at is None:
        reading.began_at = now
    for spec in event.trajectories:
        if spec.trajectory_id in reading.trajectories:
            continue
        reading.recovered += spec.steps_done > 0
        reading.trajectories[spec.trajectory_id] = _Trajectory(spec, now, appended=spec.context_tokens)


def _generated(reading: _Reading, event: StepGenerated | GenerationInterrupted, now: float) -> None:
    trajectory = reading.trajectories[event.trajectory_id]
    trajectory.partial += event.output_tokens
    trajectory.generated_at = now
    uncached = None
    if isinstance(event, StepGenerated):
        uncached = max(0, event.prompt_tokens - event.cached_tokens)
        trajectory.appended += event.forced_tokens
        _close_step(reading, trajectory)
    if trajectory.granted_at is not None:
        reading.generations.append(
            Generation(event.worker_id, trajectory.granted_at, now, event.output_tokens, uncached)
        )
        trajectory.granted_at = None


def _close_step(reading: _Reading, trajectory: _Trajectory) -> None:
    reading.silent += trajectory.partial == 0
    trajectory.steps.append(WorkStep(trajectory.appended, max(trajectory.partial, 1)))
    trajectory.appended = trajectory.partial = 0


def _observed(trajectory: _Trajectory, event: ToolsFinished, now: float) -> None:
    trajectory.appended += event.appended_tokens
    if trajectory.tools_at is not None and trajectory.steps:
        step = trajectory.steps[-1]
        seconds = now - trajectory.tools_at
        trajectory.steps[-1] = WorkStep(
            step.prompt_tokens, step.output_tokens, trajectory.tool_names, seconds
        )
    trajectory.tools_at, trajectory.tool_names = None, ()


def _ended(reading: _Reading, trajectory: _Trajectory, now: float) -> None:
    """The first of its two ends counts: making its reward and record belongs to no worker."""
    if not trajectory.open:
        return
    trajectory.open = False
    reading.ended_at = max(reading.ended_at, now)
    if trajectory.tools_at is not None and trajectory.steps:
        # Its last tools ended the task: no observation followed, but their time passed.
        step = trajectory.steps[-1]
        trajectory.steps[-1] = WorkStep(
            step.prompt_tokens, step.output_tokens, trajectory.tool_names, now - trajectory.tools_at
        )


def _workload(reading: _Reading, name: str, *, torn: int) -> Workload:
    made, left_out, still_open = [], 0, 0
    for identity, trajectory in reading.trajectories.items():
        still_open += trajectory.open
        if trajectory.partial:
            _close_step(reading, trajectory)
        if not trajectory.steps:
            left_out += 1
            continue
        arrival_s = trajectory.submitted_at - (reading.began_at or 0.0)
        made.append(
            WorkTrajectory(identity, trajectory.spec.group_id, tuple(trajectory.steps), arrival_s=arrival_s)
        )
    if not made:
        raise InvalidRequest("holds no trajectory that generated anything", path=name)
    notes = notes_of(
        (1, "recorded run: tool times include the wait for a free tool that it had"),
        (left_out, f"{some(left_out, 'trajectory', 'trajectories')} without a token left out"),
        (still_open, f"{some(still_open, 'trajectory', 'trajectories')} open at the end of the log"),
        (
            reading.cut_short,
            f"{some(reading.cut_short, 'trajectory', 'trajectories')} cut short from outside",
        ),
        (reading.recovered, f"{some(reading.recovered, 'trajectory', 'trajectories')} recovered in mid-run"),
        (reading.silent, f"{some(reading.silent, 'step', 'steps')} sampled nothing, played as one token"),
        (torn, f"the last line is torn ({torn} bytes) and was left out"),
    )
    return Workload(name, tuple(made), notes)
