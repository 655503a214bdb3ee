"""The batch that is rehearsed comes out of a coordinator's store, or from records that a run wrote."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from store_builders import make_batch, make_trajectory

from heddle.errors import InvalidRequest
from heddle.records import Trajectory, encode_trajectory
from heddle.rehearsal.recorded import NothingRecorded, like_recorded, recorded_workload
from heddle.simulate.sampling import Draw, SampleSource
from heddle.store.finished import STORE_NAME, last_finished_batch
from heddle.store.sqlite import open_store
from heddle.types import BatchId, StopReason, TrajectoryStatus


def member(batch_id: str, group: int, sample: int) -> Trajectory:
    """A finished trajectory of a batch."""
    made = make_trajectory(f"{batch_id}-g{group}-t{sample}")
    return replace(made, batch_id=batch_id, group_id=f"{batch_id}-g{group}")


async def test_the_batch_that_finished_last_is_taken(tmp_path: Path) -> None:
    """Not one that still runs, nor one that was cancelled; until then there is nothing."""
    async with open_store(tmp_path / STORE_NAME) as store:
        await store.add_batch(make_batch("old", total=2))
        with pytest.raises(NothingRecorded, match="no batch that has finished"):
            recorded_workload(str(tmp_path))
        for sample in range(2):
            await store.commit(member("old", 0, sample))
        await store.mark_finished(BatchId("old"), 5.0)
        await store.add_batch(make_batch("open", total=2))
        await store.commit(member("open", 0, 0))

        workload = recorded_workload(str(tmp_path))

    assert last_finished_batch(tmp_path / STORE_NAME) == "old"
    assert [t.trajectory_id for t in workload.trajectories] == ["old-g0-t0", "old-g0-t1"]
    assert {t.group_id for t in workload.trajectories} == {"old-g0"}


def test_a_record_is_played_as_it_went(tmp_path: Path) -> None:
    """Tokens that were sampled, what was appended between, and the seconds of its tools; failures are not."""
    record = make_trajectory()
    failed = replace(
        record,
        trajectory_id="other",
        status=TrajectoryStatus.ABORTED,
        stop_reason=StopReason.CANCELLED,
    )
    path = tmp_path / "records.jsonl"
    path.write_bytes(encode_trajectory(record) + b"\n" + encode_trajectory(failed) + b"\n")

    workload = recorded_workload(str(path))

    (played,) = workload.trajectories
    assert workload.notes == ("1 trajectories without an end of their own left out",)
    assert [step.output_tokens for step in played.steps] == [s.output_tokens for s in record.steps]
    assert played.steps[0].prompt_tokens == record.steps[0].prompt_tokens
    ends = record.steps[-1].prompt_tokens + record.steps[-1].output_tokens
    assert sum(step.prompt_tokens + step.output_tokens for step in played.steps) == ends
    tools = [call for step in record.steps for call in step.tool_calls]
    assert sum(s.tool_seconds or 0.0 for s in played.steps) == pytest.approx(
        sum(call.cold_start_s + call.run_s for call in tools)
    )


def test_draws_are_as_large_as_what_was_recorded(tmp_path: Path) -> None:
    """Groups of the usual size; of prompts with one sample each, members come from all."""
    path = tmp_path / "records.jsonl"
    path.write_bytes(b"\n".join(encode_trajectory(member("b", g, s)) for g in range(3) for s in range(2)))
    workload = recorded_workload(str(path))

    assert like_recorded(workload) == Draw(3, 2, SampleSource.PROMPT)
    assert like_recorded(workload, groups=5, samples=4) == Draw(5, 4, SampleSource.PROMPT)
    single = replace(workload, trajectories=workload.trajectories[::2])
    assert like_recorded(single) == Draw(3, 1, SampleSource.TRACE)


def test_a_line_that_is_no_record_is_named(tmp_path: Path) -> None:
    """By file and number."""
    path = tmp_path / "records.jsonl"
    path.write_bytes(encode_trajectory(make_trajectory()) + b"\n{}\n")

    with pytest.raises(InvalidRequest) as refused:
        recorded_workload(str(path))

    assert refused.value.path == f"{path}:2"
