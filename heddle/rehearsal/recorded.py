"""The batch that is rehearsed: out of a coordinator's store, from records, from a trace or an event log.

Of a store it is the batch that finished last: the policy that made it is nearest to the one that makes the
next. Records that failed or were cancelled are left out, as what they would have become is not known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from pydantic import ValidationError

from heddle.errors import InvalidRequest
from heddle.records import StepRecord, Trajectory, decode_trajectory
from heddle.simulate.readers import read_workload
from heddle.simulate.sampling import Draw, SampleSource
from heddle.simulate.trace_files import read_trace
from heddle.simulate.workload import Workload, WorkStep, WorkTrajectory
from heddle.store.finished import finished_records, last_finished_batch, store_at
from heddle.types import GroupId, TrajectoryId, TrajectoryStatus
from heddle.validation import first_fault

_OWN_ENDS = (TrajectoryStatus.COMPLETED, TrajectoryStatus.TRUNCATED)


class NothingRecorded(InvalidRequest):
    """There is a place for recorded batches, and none in it yet."""


def recorded_workload(source: str) -> Workload:
    """What there is to rehearse.

    ``source`` is a data directory, a store, a file (records of ``heddle run``, a trace, an event log; also
    gzipped) or the name of a shipped trace. Raises ``NothingRecorded`` for a directory or store without a
    batch that finished, ``InvalidRequest`` and ``StoreError`` for what cannot be read.
    """
    path = Path(source)
    store = store_at(path) if path.exists() else None
    if store is not None:
        return _of_store(store)
    content = read_trace(source)
    if b'"response_ids"' in content.partition(b"\n")[0]:
        return _of_records(content.splitlines(), source)
    return read_workload(content, name=source)


def like_recorded(workload: Workload, groups: int | None = None, samples: int | None = None) -> Draw:
    """Draws of the recorded size: as many groups, of the size that is most frequent.

    A group's samples come from its own prompt where it has several, else from the whole batch.
    """
    sizes = Counter(trajectory.group_id for trajectory in workload.trajectories)
    usual = Counter(sizes.values()).most_common(1)[0][0]
    source = SampleSource.PROMPT if usual > 1 else SampleSource.TRACE
    return Draw(groups or len(sizes), samples or usual, source)


def _of_store(store: Path) -> Workload:
    batch_id = last_finished_batch(store) if store.is_file() else None
    if batch_id is None:
        raise NothingRecorded("holds no batch that has finished", path=str(store))
    return _of_records((record for _, record in finished_records(store, batch_id)), f"{store}: {batch_id}")


def _of_records(lines: Iterable[bytes], name: str) -> Workload:
    played: list[WorkTrajectory] = []
    left_out = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = decode_trajectory(line)
        except ValidationError as exc:
            raise InvalidRequest(str(first_fault(exc)), path=f"{name}:{number}") from exc
        if record.status in _OWN_ENDS and record.steps:
            played.append(_of_record(record))
        else:
            left_out += 1
    if not played:
        raise NothingRecorded("holds no trajectory that came to an end of its own", path=name)
    notes = (f"{left_out:,} trajectories without an end of their own left out",) if left_out else ()
    return Workload(name, tuple(played), notes)


def _of_record(record: Trajectory) -> WorkTrajectory:
    appended = [record.steps[0].prompt_tokens]
    appended += [
        max(0, after.prompt_tokens - before.prompt_tokens - before.output_tokens)
        for before, after in pairwise(record.steps)
    ]
    steps = tuple(_step(step, tokens) for step, tokens in zip(record.steps, appended, strict=True))
    return WorkTrajectory(TrajectoryId(record.trajectory_id), GroupId(record.group_id), steps)


def _step(step: StepRecord, appended: int) -> WorkStep:
    """Calls of one step run one after the other; a wait for a free tool was the recorded run's own."""
    names: Sequence[str] = [call.name for call in step.tool_calls]
    seconds = sum(call.cold_start_s + call.run_s for call in step.tool_calls)
    return WorkStep(appended, max(1, step.output_tokens), tuple(names), seconds)
