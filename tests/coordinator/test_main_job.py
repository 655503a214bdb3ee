"""The main job through the whole coordinator on a fake engine: fidelity, crashes, restarts, cancelling."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from job_harness import TOKENIZER, Job, call_text, collect

from heddle.control.replay import replay
from heddle.engines.fake import FakeFaults
from heddle.errors import Conflict, InvalidRequest, NotFound
from heddle.eventlog import read_event_log
from heddle.records import Timing, Trajectory
from heddle.store.gates import check
from heddle.text.byte_tokenizer import TURN_END
from heddle.types import TrajectoryStatus


def make_job(**overrides: object) -> Job:
    """Three prompts of four samples."""
    request = {"prompts": [{"task": {"say": f"Go {i}."}} for i in range(3)], "samples_per_prompt": 4}
    return Job(request={**request, **overrides})


def essence(record: Trajectory) -> Trajectory:
    """A record without what may differ between two runs: times, where it ran, and how often."""
    steps = [
        replace(
            step,
            worker_id="",
            segments=0,
            cached_tokens=0,
            queue_s=0.0,
            prefill_s=0.0,
            decode_s=0.0,
            tool_calls=tuple(replace(c, queue_s=0.0, cold_start_s=0.0, run_s=0.0) for c in step.tool_calls),
        )
        for step in record.steps
    ]
    return replace(record, attempt=0, steps=steps, timing=Timing(), predictions=[])


async def test_what_was_sent_is_append_only_and_is_the_record(tmp_path: Path) -> None:
    """Each request extends the one before by what came back and was observed; nothing is retokenised."""
    job = Job()
    record = await job.run_one(tmp_path)

    sent = [list(request.prompt_ids) for request in job.sent]
    whole = record.prompt_ids + record.response_ids
    for ids in sent:
        assert whole[: len(ids)] == ids
    assert sent[0] == record.prompt_ids
    assert [len(ids) for ids in sent] == sorted(len(ids) for ids in sent)


async def test_arrays_are_aligned_and_the_mask_marks_what_was_sampled(tmp_path: Path) -> None:
    """Equal lengths; as many ones as tokens were sampled; logprob 0.0 exactly where the mask is 0."""
    for record in await make_job().run(tmp_path):
        assert check(record) == []
        assert record.sampled_tokens == sum(step.output_tokens for step in record.steps)
        pairs = zip(record.response_mask, record.response_logprobs, strict=True)
        assert all(logprob == 0.0 for mask, logprob in pairs if mask == 0)


async def test_decoded_tokens_are_the_transcript(tmp_path: Path) -> None:
    """The transcript says what the tokens say, each message in its place."""
    record = await Job().run_one(tmp_path)

    text = TOKENIZER.decode(record.prompt_ids + record.response_ids)
    position = 0
    for message in record.messages:
        position = text.index(message.content, position) + len(message.content)
    rest = text[position:]
    assert rest == "<|end|>"


async def test_the_parts_of_the_timing_add_up(tmp_path: Path) -> None:
    """Within 1 % of the wall; no part is negative beyond a clock's grain."""
    for record in await make_job().run(tmp_path):
        timing = record.timing
        assert timing.parts == pytest.approx(timing.wall, rel=0.01)
        assert timing.coordinator > -0.001


async def test_a_crash_in_mid_generation_changes_nothing_but_the_worker(tmp_path: Path) -> None:
    """Trajectories go on elsewhere from their last token: the same ids as without the crash, none twice."""
    calm = await make_job().run(tmp_path / "calm")
    job = make_job()
    job.faults = [FakeFaults(crash_after_tokens=5)]
    rough = await job.run(tmp_path / "rough")

    assert [essence(r) for r in rough] == [essence(r) for r in calm]
    assert any(step.segments > 1 for record in rough for step in record.steps)
    assert sum(record.timing.engine_stall for record in rough) > 0.0


async def test_the_same_id_is_the_same_batch(tmp_path: Path) -> None:
    """Sent twice at once and once later: one batch runs; another content is a conflict."""
    job = make_job()
    async with job.coordinator(tmp_path) as coordinator:
        answers = await asyncio.gather(*(coordinator.submit(job.batch()) for _ in range(3)))
        assert sorted(created for _, created in answers) == [False, False, True]
        records = await collect(coordinator, "b")
        assert len({record.trajectory_id for record in records}) == len(records) == 12
        _, created = await coordinator.submit(job.batch())
        assert created is False
        with pytest.raises(Conflict, match="different content"):
            await coordinator.submit(job.batch(samples_per_prompt=2))


async def test_a_bad_prompt_starts_nothing(tmp_path: Path) -> None:
    """Accepted wholly or not at all, with the path of the prompt that is wrong."""
    job = make_job()
    bad = [{"task": {}}, {"task": {}, "environment": "nowhere"}]
    async with job.coordinator(tmp_path) as coordinator:
        with pytest.raises(InvalidRequest, match="unknown environment") as refused:
            await coordinator.submit(job.batch(prompts=bad))
        assert refused.value.path == "prompts[1].environment"
        with pytest.raises(InvalidRequest, match="leaves no room") as refused:
            await coordinator.submit(job.batch(prompts=[{"task": {"say": "x" * 5000}}]))
        assert refused.value.path == "prompts[0].task"
        assert (await coordinator.batches(after=None, limit=1)).batches == []
        with pytest.raises(NotFound):
            await coordinator.batch("b")
    assert job.sent == []


async def test_cancelling_ends_every_trajectory_with_a_record(tmp_path: Path) -> None:
    """Slots and tools are free at once, each trajectory is accounted for, and the batch is over."""
    job = make_job()
    job.token_delay_s = 0.05
    async with job.coordinator(tmp_path) as coordinator:
        await coordinator.submit(job.batch())
        async with asyncio.timeout(10):
            while not any(worker.running for worker in await coordinator.workers()):
                await asyncio.sleep(0.01)
        await coordinator.cancel("b")
        records = await collect(coordinator, "b")
        workers = await coordinator.workers()
        status = await coordinator.batch("b")

    assert {record.status for record in records} == {TrajectoryStatus.ABORTED}
    assert len(records) == 12
    assert [(w.running, w.waiting, w.resident) for w in workers] == [(0, 0, 0)] * 2
    assert status.state == "cancelled"


async def test_a_restart_goes_on_where_the_last_one_stopped(tmp_path: Path) -> None:
    """Finished trajectories are there once; open ones end with the tokens of an undisturbed run."""
    calm = await make_job().run(tmp_path / "calm")
    job = make_job()
    job.token_delay_s = 0.002
    async with job.coordinator(tmp_path / "stopped") as coordinator:
        await coordinator.submit(job.batch())
        async with asyncio.timeout(20):
            while (await coordinator.batch("b")).finished < 3:
                await asyncio.sleep(0.01)
    async with make_job().coordinator(tmp_path / "stopped") as coordinator:
        records = await collect(coordinator, "b")

    assert [essence(r) for r in records] == [essence(r) for r in calm]


async def test_a_restart_in_mid_tool_runs_the_tool_again(tmp_path: Path) -> None:
    """A step that was generated but not observed is not generated twice; no slot is held meanwhile."""
    job = Job(turn=lambda step: call_text("slow") if step == 0 else "Done.")
    async with job.coordinator(tmp_path) as coordinator:
        await coordinator.submit(job.batch())
        async with asyncio.timeout(20):
            while (await coordinator.batch("b")).by_phase.get("in_tool") != 1:
                await asyncio.sleep(0.01)
    again = Job(turn=job.turn)
    async with again.coordinator(tmp_path) as coordinator:
        async with asyncio.timeout(20):
            while (await coordinator.batch("b")).by_phase.get("in_tool") != 1:
                await asyncio.sleep(0.01)
        assert sum(worker.running for worker in await coordinator.workers()) == 0
        [record] = await collect(coordinator, "b")
        workers = await coordinator.workers()

    assert (len(job.sent), len(again.sent)) == (1, 1)
    assert record.response_ids.count(TURN_END) == 3
    assert [len(step.tool_calls) for step in record.steps] == [1, 0]
    assert [(w.running, w.resident) for w in workers] == [(0, 0)] * 2


async def test_the_event_log_replays_to_the_same_commands(tmp_path: Path) -> None:
    """Byte for byte, with a crash in it."""
    job = make_job()
    job.faults = [FakeFaults(crash_after_tokens=5)]
    await job.run(tmp_path)

    [path] = (tmp_path / "events").glob("*.jsonl")
    log = read_event_log(path)
    report = replay(log.settings, log.entries)
    assert report.equal, report.difference
    assert report.commands > 36
    assert report.open_trajectories == 0


async def test_pausing_holds_what_has_not_started(tmp_path: Path) -> None:
    """While paused nothing new generates; resuming finishes the batch."""
    job = make_job()
    async with job.coordinator(tmp_path) as coordinator:
        await coordinator.pause()
        await coordinator.submit(job.batch())
        await asyncio.sleep(0.05)
        assert job.sent == []
        explained = await coordinator.explain("b-g0-t0")
        assert "paused" in explained.reason or "no worker" in explained.reason
        await coordinator.resume()
        assert len(await collect(coordinator, "b")) == 12


async def test_a_drained_worker_leaves_its_work_to_the_others(tmp_path: Path) -> None:
    """Removing a worker in the middle of a batch loses nothing."""
    job = make_job()
    job.token_delay_s = 0.002
    async with job.coordinator(tmp_path) as coordinator:
        await coordinator.submit(job.batch())
        async with asyncio.timeout(10):
            while not await coordinator.ready():
                await asyncio.sleep(0.01)
        await coordinator.remove_worker("w0")
        records = await collect(coordinator, "b")

    assert {record.status for record in records} == {TrajectoryStatus.COMPLETED}
    assert len(records) == 12


async def test_a_second_prompt_id_of_the_same_name_is_refused(tmp_path: Path) -> None:
    """Prompt ids identify groups within their batch."""
    job = make_job(prompts=[{"prompt_id": "p", "task": {}}] * 2)
    async with job.coordinator(tmp_path) as coordinator:
        with pytest.raises(InvalidRequest, match="twice") as refused:
            await coordinator.submit(job.batch())
    assert refused.value.path == "prompts[1].prompt_id"


async def test_a_call_is_parsed_once_and_recorded_as_it_was(tmp_path: Path) -> None:
    """Arguments and results of a tool call come back in the step that made it."""
    job = Job(turn=lambda step: call_text("echo", "grüß dich") if step == 0 else "Fertig.")
    record = await job.run_one(tmp_path)

    [call] = record.steps[0].tool_calls
    assert (call.name, call.arguments, call.result) == ("echo", {"text": "grüß dich"}, "grüß dich")
    assert record.messages[1].content == call_text("echo", "grüß dich")


async def test_how_a_batch_stands_counts_what_ended_before_a_restart(tmp_path: Path) -> None:
    """What is counted in memory begins with what the store has."""
    job = Job(turn=lambda step: "The end. " * 8, pool="1", slots=1, token_delay_s=0.002)
    async with job.coordinator(tmp_path) as coordinator:
        await coordinator.submit(job.batch(samples_per_prompt=4))
        while not (before := await coordinator.batch("b")).finished:
            await asyncio.sleep(0)
    assert before.by_status == {"completed": before.finished}

    async with job.coordinator(tmp_path) as coordinator:
        after = await coordinator.batch("b")
        assert before.finished <= after.finished < 4
        assert after.by_status == {"completed": after.finished}
        records = await collect(coordinator, "b")
        over = await coordinator.batch("b")
    assert (over.finished, over.by_status) == (4, {"completed": 4})
    assert over.sampled_tokens == sum(record.sampled_tokens for record in records)
