"""Finished trajectories, as predictors learn from them and are judged by them.

They come from a coordinator's store (its data directory, or the file itself; one that is in use is only
read), or from JSON lines, perhaps gzipped, of one of three kinds, told apart by the first line: *records* as
``heddle run`` writes them; *traces* ``{trajectory_id, prompt_id, steps: [{prompt_tokens, output_tokens,
tool_name, tool_seconds}]}``; and *points* ``{trajectory_id, prompt_id, source, steps_done,
output_tokens_done, context_tokens, last_tool, last_tool_seconds, remaining_output_tokens, remaining_steps,
text, split}``, one for each trajectory and number of finished steps. Every complaint names file and line.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from heddle.errors import InvalidRequest
from heddle.predict.evaluation.recorded import RecordedPoint, RecordedTrajectory
from heddle.records import Trajectory, decode_trajectory
from heddle.store.finished import finished_records, store_at
from heddle.text.digest import digest
from heddle.types import NO_STEP, Message, StepView, TrajectoryId, TrajectoryStatus
from heddle.validation import first_fault

TEST_SHARE = 0.2
"""Of the prompts, where the file does not say which are for testing."""

_TROUBLE = re.compile(r"(?i)\b(?:error|traceback|exception|failed|fatal)\b")


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class _PointRow(_Row):
    trajectory_id: str
    prompt_id: str
    source: str = ""
    split: Literal["train", "test"] | None = None
    steps_done: int = Field(ge=0)
    output_tokens_done: int = Field(ge=0)
    context_tokens: int = Field(ge=0)
    last_tool: str | None = None
    last_tool_seconds: float | None = None
    remaining_output_tokens: int = Field(ge=1)
    remaining_steps: int = Field(ge=1)
    text: str = ""


class _TraceStep(_Row):
    prompt_tokens: int = Field(default=0, ge=0)
    output_tokens: int = Field(ge=0)
    tool_name: str | None = None
    tool_seconds: float | None = None


class _TraceRow(_Row):
    trajectory_id: str
    prompt_id: str | None = None
    trace: str = ""
    steps: list[_TraceStep] = Field(min_length=1)


_OWN_ENDS = (TrajectoryStatus.COMPLETED, TrajectoryStatus.TRUNCATED)

_KIND: TypeAdapter[dict[str, object]] = TypeAdapter(dict[str, object])


def read_recordings(path: Path) -> list[RecordedTrajectory]:
    """All trajectories, prompt after prompt, in an order that tells nothing of their lengths.

    (That of the hashes of the prompts' names: files are often sorted by outcome.) Those that ended in another
    way than their own are left out. Raises ``InvalidRequest``, and ``StoreError`` where a store cannot be
    read.
    """
    found = _read(path)
    split = [t if t.held_out is not None else replace(t, held_out=_for_test(t.prompt_id)) for t in found]
    return sorted(split, key=lambda t: (_digest(t.prompt_id), t.trajectory_id))


def _read(path: Path) -> list[RecordedTrajectory]:
    try:
        store = store_at(path)
    except OSError as exc:
        raise InvalidRequest(f"cannot be read: {exc}", path=str(path)) from exc
    if store is not None:
        found = _records((f"{store}: {name}", record) for name, record in finished_records(store))
        if not found:
            raise InvalidRequest("has no trajectory that came to an end of its own", path=str(store))
        return found
    lines = list(_lines(path))
    if not lines:
        raise InvalidRequest("has no lines", path=str(path))
    where, first = lines[0]
    try:
        keys = _KIND.validate_json(first)
    except ValidationError as exc:
        raise _complaint(where, exc) from exc
    if "response_ids" in keys:
        return _records(lines)
    return _points(lines) if "steps_done" in keys else _traces(lines)


def _lines(path: Path) -> Iterator[tuple[str, bytes]]:
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
    except (OSError, EOFError) as exc:
        raise InvalidRequest(f"cannot be read: {exc}", path=str(path)) from exc
    for number, line in enumerate(content.splitlines(), 1):
        if line.strip():
            yield f"{path}:{number}", line


def _records(lines: Iterable[tuple[str, bytes]]) -> list[RecordedTrajectory]:
    found = []
    for where, line in lines:
        try:
            record = decode_trajectory(line)
        except ValidationError as exc:
            raise _complaint(where, exc) from exc
        if (
            record.status in (TrajectoryStatus.COMPLETED, TrajectoryStatus.TRUNCATED)
            and record.sampled_tokens
        ):
            found.append(_of_record(record))
    return found


def _of_record(record: Trajectory) -> RecordedTrajectory:
    prompt_tokens = len(record.prompt_ids)
    positions = [i for i, message in enumerate(record.messages) if message.role == "assistant"]
    opening = record.messages[: positions[0]] if positions else record.messages
    points = [RecordedPoint(0, 0, prompt_tokens, text=digest(opening))]
    for step, following in pairwise(record.steps):
        before = points[-1]
        generated = before.generated_tokens + step.output_tokens
        appended = following.prompt_tokens - step.prompt_tokens - step.output_tokens
        calls = step.tool_calls
        seconds = sum(call.queue_s + call.cold_start_s + call.run_s for call in calls)
        view = StepView(
            step.output_tokens,
            tuple(call.name for call in calls),
            tuple(call.outcome for call in calls),
            seconds,
            max(0, appended),
        )
        text = digest(_context(record.messages, positions, len(points)))
        points.append(
            RecordedPoint(
                len(points), generated, following.prompt_tokens, view, before.tool_seconds + seconds, text
            )
        )
    return RecordedTrajectory(
        TrajectoryId(record.trajectory_id),
        record.prompt_id,
        record.environment,
        tuple(points),
        record.sampled_tokens,
        len(record.steps),
        points[-1].tool_seconds,
    )


def _context(messages: list[Message], assistants: list[int], steps_done: int) -> list[Message]:
    """Everything before the assistant's next turn."""
    return messages if steps_done >= len(assistants) else messages[: assistants[steps_done]]


def _traces(lines: Iterable[tuple[str, bytes]]) -> list[RecordedTrajectory]:
    found = []
    for where, line in lines:
        try:
            row = _TraceRow.model_validate_json(line)
        except ValidationError as exc:
            raise _complaint(where, exc) from exc
        if any(step.output_tokens for step in row.steps):
            found.append(_of_trace(row))
    return found


def _of_trace(row: _TraceRow) -> RecordedTrajectory:
    points = [RecordedPoint(0, 0, row.steps[0].prompt_tokens)]
    for step, following in pairwise(row.steps):
        before = points[-1]
        names = tuple(step.tool_name.split("+")) if step.tool_name else ()
        view = StepView(step.output_tokens, names, (), step.tool_seconds, following.prompt_tokens)
        points.append(
            RecordedPoint(
                len(points),
                before.generated_tokens + step.output_tokens,
                before.context_tokens + step.output_tokens + following.prompt_tokens,
                view,
                before.tool_seconds + (step.tool_seconds or 0.0),
            )
        )
    total = sum(step.output_tokens for step in row.steps)
    return RecordedTrajectory(
        TrajectoryId(row.trajectory_id),
        row.prompt_id or row.trajectory_id,
        row.trace,
        tuple(point for point in points if point.generated_tokens < total),
        total,
        len(row.steps),
        points[-1].tool_seconds,
    )


def _points(lines: Iterable[tuple[str, bytes]]) -> list[RecordedTrajectory]:
    rows: dict[str, list[_PointRow]] = {}
    for where, line in lines:
        try:
            row = _PointRow.model_validate_json(line)
        except ValidationError as exc:
            raise _complaint(where, exc) from exc
        rows.setdefault(row.trajectory_id, []).append(row)
    return [_of_points(sorted(group, key=lambda row: row.steps_done)) for group in rows.values()]


def _of_points(rows: list[_PointRow]) -> RecordedTrajectory:
    first, last = rows[0], rows[-1]
    points: list[RecordedPoint] = []
    seconds = 0.0
    for before, row in pairwise([first, *rows]):
        seconds += row.last_tool_seconds or 0.0
        step = _step_between(before, row) if row.steps_done else NO_STEP
        points.append(
            RecordedPoint(row.steps_done, row.output_tokens_done, row.context_tokens, step, seconds, row.text)
        )
    return RecordedTrajectory(
        TrajectoryId(first.trajectory_id),
        first.prompt_id,
        first.source,
        tuple(points),
        last.output_tokens_done + last.remaining_output_tokens,
        last.steps_done + last.remaining_steps,
        seconds,
        None if first.split is None else first.split == "test",
    )


def _step_between(before: _PointRow, row: _PointRow) -> StepView:
    """The last step, or the mean of those between two points where some are missing."""
    steps = max(1, row.steps_done - before.steps_done)
    output = row.output_tokens_done - before.output_tokens_done
    appended = max(0, row.context_tokens - before.context_tokens - output)
    names = tuple(row.last_tool.split("+")) if row.last_tool else ()
    answer = row.text.rpartition("\nTool:")[2] if "\nTool:" in row.text else ""
    outcomes = ("error" if _TROUBLE.search(answer) else "ok",) if names else ()
    return StepView(output // steps, names, outcomes, row.last_tool_seconds, appended // steps)


def _for_test(prompt_id: str) -> bool:
    """Four prompts in five are for training."""
    return int.from_bytes(_digest(prompt_id)[8:12], "big") < TEST_SHARE * 2**32


def _digest(prompt_id: str) -> bytes:
    return hashlib.sha256(prompt_id.encode()).digest()


def _complaint(where: str, exc: ValidationError) -> InvalidRequest:
    fault = first_fault(exc)
    return InvalidRequest(fault.message, path=f"{where}: {fault.where}" if fault.where else where)
