"""The main job through the whole coordinator on SGLang's wire: sessions, interruptions, native preemption."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from job_harness import TOKENIZER, Job, call_text, collect, script

from heddle.agent.ports import GenerationRequest
from heddle.app import open_coordinator
from heddle.coordinator.assembly import EngineKit
from heddle.coordinator.service import Coordinator
from heddle.engines.sglang.adapter import SGLangSettings
from heddle.engines.sglang.attach import AttachLauncher, find_servers
from heddle.records import Trajectory
from heddle.store.gates import check
from heddle.testing import MockSettings, MockSGLang, MockTiming
from heddle.text.byte_tokenizer import TURN_END
from heddle.types import SamplingParams, TrajectoryStatus

PLAIN = SGLangSettings()
SERVER = MockSettings(
    vocabulary=300,
    end_id=TURN_END,
    max_running_requests=2,
    enable_session_radix_cache=True,
    enable_priority_scheduling=True,
    priority_scheduling_preemption_threshold=0,
    timing=MockTiming(decode_s=(0.002,)),
)


def make_job(**decisions: object) -> Job:
    """Six trajectories of three steps on one worker, whose last words take a while."""
    return Job(
        turn=lambda step: call_text("echo") if step < 2 else "The end. " * 20,
        pool="1",
        decisions=decisions,
        request={"prompts": [{"task": {"say": f"Go {i}."}} for i in range(6)]},
    )


def server_for(job: Job) -> MockSettings:
    """A server that says what the job's model says."""
    write = script(job.turn)

    def sampled(prompt_ids: Sequence[int]) -> Sequence[int]:
        return write(GenerationRequest("", prompt_ids, 1, SamplingParams()))

    return replace(SERVER, script=sampled)


@asynccontextmanager
async def coordinated(
    job: Job, mock: MockSGLang, data_dir: Path, settings: SGLangSettings, native_share: float | None
) -> AsyncIterator[Coordinator]:
    """A coordinator whose only worker is this server."""
    servers = await find_servers([mock.url])
    launcher = AttachLauncher(
        servers,
        context_tokens=job.context_tokens,
        ready_timeout_s=10.0,
        engine_settings=settings,
        native_share=native_share,
    )
    kit = EngineKit(launcher, TOKENIZER, servers[0].facts.capabilities, "scripted")
    async with open_coordinator(job.config(data_dir), kit=kit) as coordinator:
        yield coordinator


async def run(
    job: Job,
    mock: MockSGLang,
    data_dir: Path,
    settings: SGLangSettings = PLAIN,
    native_share: float | None = None,
) -> list[Trajectory]:
    """The records of a whole batch; each has passed every gate."""
    async with coordinated(job, mock, data_dir, settings, native_share) as coordinator:
        await coordinator.submit(job.batch())
        records = await collect(coordinator, "b")
    for record in records:
        assert record.status is TrajectoryStatus.COMPLETED
        assert check(record) == []
    return records


async def test_records_are_those_of_any_engine(tmp_path: Path) -> None:
    """Token for token; later steps find their prefix; ended trajectories keep none."""
    job = make_job()
    on_fakes = await make_job().run(tmp_path / "fake")
    async with MockSGLang(server_for(job)) as mock:
        records = await run(job, mock, tmp_path / "mock")
        assert mock.cache.sessions == frozenset()
        sessions = {body["session_id"] for body in mock.generate_bodies}
    assert [record.response_ids for record in records] == [record.response_ids for record in on_fakes]
    assert sessions == {record.trajectory_id for record in records}
    assert all(step.cached_tokens > 0 for record in records for step in record.steps[1:])


async def test_an_operator_who_aborts_everything_costs_nothing(tmp_path: Path) -> None:
    """More often than an engine may fail: these are no failures, and every token is kept."""
    job = make_job()
    job.engine["max_interruptions"] = 1
    undisturbed = await make_job().run(tmp_path / "fake")
    async with MockSGLang(server_for(job)) as mock, asyncio.TaskGroup() as tasks:
        disturbing = tasks.create_task(abort_again_and_again(mock))
        records = await run(job, mock, tmp_path / "mock")
        disturbing.cancel()
    assert [record.response_ids for record in records] == [record.response_ids for record in undisturbed]
    interrupted = [step for record in records for step in record.steps if step.preemptions]
    assert max(step.preemptions for step in interrupted) > 1
    assert all(step.segments == step.preemptions + 1 for step in interrupted)


async def abort_again_and_again(mock: MockSGLang) -> None:
    """Each time that something runs, after a few tokens of it."""
    async with httpx.AsyncClient(base_url=mock.url, trust_env=False) as client:
        while True:
            generated = mock.scheduler.tally.generated_tokens
            while mock.scheduler.tally.generated_tokens < generated + 60:
                await asyncio.sleep(0.005)
            await client.post("/abort_request", json={"abort_all": True})


@pytest.mark.parametrize("native", [False, True])
async def test_native_and_coordinator_preemption_sample_the_same(native: bool, tmp_path: Path) -> None:
    """With more grants than the server runs at once, the server itself takes slots away."""
    long_steps = [{"output_tokens": 5, "tool_seconds": 0.5}, {"output_tokens": 250}]
    job = Job(
        pool="1",
        slots=2 if native else 1,
        decisions={"scheduler": "progressive", "predictor": "oracle"},
        request={
            "environment": "replay",
            "prompts": [{"task": {"steps": steps}} for steps in (long_steps, [{"output_tokens": 120}])],
        },
    )
    async with MockSGLang(replace(SERVER, timing=MockTiming(decode_s=(0.01,)))) as mock:
        settings = SGLangSettings(native_priority=native, end_ids=(TURN_END,))
        [long, short] = await run(job, mock, tmp_path, settings, native_share=0.5 if native else None)
        assert mock.scheduler.tally.retracted == (1 if native else 0)
    assert (long.sampled_tokens, short.sampled_tokens) == (255, 120)
    assert short.steps[0].preemptions == (0 if native else 1)
