"""What ``progressive`` learns in one coordinator is known in the next, and is part of its event log."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from job_harness import Job, collect

from heddle.control.events import LearningTurn, PredictorRestored
from heddle.control.replay import replay
from heddle.coordinator.memory import SETTLE_S, PredictorMemory
from heddle.eventlog import EventLog, read_event_log
from heddle.predict import make_predictor


def logs(folder: Path) -> list[EventLog]:
    """The event logs of a data directory, oldest first."""
    return [read_event_log(path) for path in sorted((folder / "events").glob("*.jsonl"))]


async def test_a_second_coordinator_predicts_what_the_first_one_learned(tmp_path: Path) -> None:
    """Before the first step of its first batch; both logs replay to the same commands."""
    job = Job(decisions={"predictor": "progressive", "scheduler": "progressive"})
    cold = await job.run_many(tmp_path, 8)
    assert not any(p.made_after_step == 0 for record in cold for p in record.predictions)

    async with job.coordinator(tmp_path) as coordinator:
        status, _ = await coordinator.submit(job.batch(batch_id="c", samples_per_prompt=8))
        warm = await collect(coordinator, status.batch_id)
    first = [record.predictions[0] for record in warm]
    assert all(p.made_after_step == 0 and p.model == "progressive" for p in first)
    assert all(p.low_tokens <= p.predicted_remaining_tokens <= p.high_tokens for p in first)
    assert all(p.predicted_remaining_tokens > 0.0 for p in first)

    before, after = logs(tmp_path)
    assert any(isinstance(entry.event, LearningTurn) for entry in before.entries)
    assert isinstance(after.entries[0].event, PredictorRestored)
    for log in (before, after):
        assert replay(log.settings, log.entries).equal


async def test_what_a_batch_taught_is_written_when_it_is_over(tmp_path: Path) -> None:
    """Long before an orderly end, and in whole: another coordinator could go on from the file."""
    saved = tmp_path / "predictors" / "progressive.json"
    job = Job(decisions={"predictor": "progressive"})
    async with job.coordinator(tmp_path) as coordinator:
        for batch_id in ("b", "c"):
            saved.unlink(missing_ok=True)
            await coordinator.submit(job.batch(batch_id=batch_id, samples_per_prompt=8))
            await collect(coordinator, batch_id)
            async with asyncio.timeout(20.0):
                while not saved.exists():
                    await asyncio.sleep(0.05)
            make_predictor("progressive").restore(json.loads(saved.read_text()))
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


async def test_a_memory_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    """Batches run, and the next save that can write does."""
    folder = tmp_path / "predictors"
    folder.write_text("in the way")
    job = Job(decisions={"predictor": "progressive"})
    async with job.coordinator(tmp_path) as coordinator:
        await coordinator.submit(job.batch())
        assert len(await collect(coordinator, "b")) == 1
        await asyncio.sleep(2 * SETTLE_S)
        folder.unlink()
    assert (folder / "progressive.json").exists()


async def test_an_unchanged_state_is_not_written_again(tmp_path: Path) -> None:
    memory = PredictorMemory(Job().config(tmp_path), make_predictor("progressive"))
    saved = tmp_path / "predictors" / "progressive.json"
    await memory.save()
    saved.unlink()
    await memory.save()
    assert not saved.exists()


async def test_a_state_that_cannot_be_read_costs_no_start(tmp_path: Path) -> None:
    """The predictor begins anew."""
    saved = tmp_path / "predictors" / "progressive.json"
    saved.parent.mkdir()
    saved.write_text("{")
    job = Job(decisions={"predictor": "progressive"})
    assert len(await job.run_many(tmp_path, 4)) == 4
    (log,) = logs(tmp_path)
    assert not any(isinstance(entry.event, PredictorRestored) for entry in log.entries)
