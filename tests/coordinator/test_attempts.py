"""What is tried again: it carries a higher number, and what an older try still says changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from job_harness import Job, call_text, collect, script, turn_ids

from heddle.agent.journal import RESUMED, JournalEntry
from heddle.agent.ports import Generation, GenerationRequest, TokenChunk
from heddle.app import open_coordinator
from heddle.engines.fake import FakeEngine, FakeFaults, FakeModel, FakeWorker
from heddle.errors import EngineTimeout
from heddle.metrics import Metrics
from heddle.store.rules import LateWrite
from heddle.store.sqlite import open_store
from heddle.text.byte_tokenizer import TURN_END
from heddle.types import TrajectoryId, WorkerSpec

T = TrajectoryId("b-g0-t0")


class Babbling(FakeEngine):
    """Gives up on its first generation, and goes on talking about it while the second one runs."""

    late: Callable[[TokenChunk], None] | None = None

    async def generate(
        self, request: GenerationRequest, on_tokens: Callable[[TokenChunk], None]
    ) -> Generation:
        if self.late is None:
            self.late = on_tokens
            on_tokens(TokenChunk(list(b"The e"), [-0.5] * 5))
            raise EngineTimeout("no further token came")
        self.late(TokenChunk([7, 7, 7], [-0.5] * 3))
        generation = await super().generate(request, on_tokens)
        self.late(TokenChunk([8], [-0.5]))
        return generation


@dataclass(slots=True)
class BabblingLauncher:
    """Launches such engines."""

    model: FakeModel

    async def launch(self, spec: WorkerSpec, log_path: Path) -> FakeWorker:
        return FakeWorker(Babbling(slots=spec.slots, model=self.model))


async def test_tokens_of_a_request_that_was_given_up_are_ignored_and_counted(tmp_path: Path) -> None:
    """The step is what it would have been, and the metric tells."""
    job, metrics = Job(turn=lambda step: "The end.", pool="1", slots=1), Metrics()
    model = FakeModel(script(job.turn), end_of_turn_id=TURN_END, context_tokens=job.context_tokens)
    kit = replace(job.kit(), launcher=BabblingLauncher(model))
    async with open_coordinator(job.config(tmp_path), metrics, kit=kit) as coordinator:
        await coordinator.submit(job.batch())
        [record] = await collect(coordinator, "b")
    assert record.response_ids == turn_ids("The end.")
    assert record.steps[0].segments == 2
    assert metrics.registry.get_sample_value("heddle_late_results_total", {"kind": "tokens"}) == 2


async def test_every_request_of_a_step_has_a_name_of_its_own_that_tells_whose_it_is(tmp_path: Path) -> None:
    """Trajectory, attempt, step and try, and something that no other start has."""
    crash = FakeFaults(crash_after_tokens=5)
    job = Job(pool="1", slots=1, token_delay_s=0.0001, faults=[crash], request={"limits": {"max_steps": 2}})
    await job.run_one(tmp_path)
    names = [request.request_id.rpartition("-")[0] for request in job.sent]
    assert names == [f"{T}.0.0.1", f"{T}.0.0.2", f"{T}.0.1.1"]


async def test_a_trajectory_that_is_taken_up_again_is_another_attempt(tmp_path: Path) -> None:
    """It says so in its record; the attempt before it can write nothing any more."""
    job = Job(
        turn=lambda step: call_text("slow" if step == 1 else "echo"), request={"limits": {"max_steps": 3}}
    )
    for life in range(3):
        async with job.coordinator(tmp_path) as coordinator:
            await coordinator.submit(job.batch())
            async with asyncio.timeout(30):
                while (await coordinator.batch("b")).by_phase != {"in_tool": 1}:
                    await asyncio.sleep(0.01)
        async with open_store(tmp_path / "heddle.db") as store:
            entries = await store.entries(T)
            assert [entry.sequence for entry in entries] == list(range(len(entries)))
            assert [entry.attempt for entry in entries if entry.kind == RESUMED] == list(range(1, life + 1))
            if life:
                late = JournalEntry(T, life - 1, len(entries), "observation", b"{}")
                with pytest.raises(LateWrite, match=f"attempt {life - 1} is superseded by attempt {life}"):
                    await store.append(late)
    job.turn = lambda step: call_text("echo")
    async with job.coordinator(tmp_path) as coordinator:
        [record] = await collect(coordinator, "b")
    assert record.attempt == 3
    assert len(record.steps) == 3


async def test_what_befalls_a_trajectory_before_its_first_token_counts_too(tmp_path: Path) -> None:
    """An attempt of which nothing was committed has been one all the same."""
    job = Job(slots=1, pool="1", token_delay_s=0.01, request={"limits": {"max_steps": 1}})
    for _ in range(2):
        async with job.coordinator(tmp_path) as coordinator:
            await coordinator.submit(job.batch())
    job = replace(job, token_delay_s=0.0)
    async with job.coordinator(tmp_path) as coordinator:
        [record] = await collect(coordinator, "b")
    assert record.attempt == 2
