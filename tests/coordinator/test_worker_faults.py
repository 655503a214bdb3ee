"""Workers that crash, hang, crawl or talk nonsense: named, counted, replaced; no trajectory is lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from job_harness import Job, call_text, collect
from lying_engine import Lie, LyingLauncher

from heddle.agent.ports import TokenChunk
from heddle.app import open_coordinator
from heddle.coordinator.assembly import EngineKit
from heddle.engines.breaker import FAILURES_BEYOND_SLOTS
from heddle.engines.fake import FakeFaults
from heddle.metrics import Metrics
from heddle.records import Trajectory
from heddle.types import StopReason

TRAJECTORIES = 6
SLOTS = 2


def nonsense(chunk: TokenChunk) -> TokenChunk:
    return replace(chunk, token_ids=[-1] * len(chunk.token_ids))


def job(**changes: object) -> Job:
    """Two steps of tools and an answer, on one worker."""
    return replace(
        Job(turn=lambda step: call_text("echo") if step < 2 else "The end.", pool="1", slots=SLOTS),
        **changes,  # type: ignore[arg-type]  # any field may be changed by its name
    )


async def run(job: Job, kit: EngineKit, data_dir: Path, metrics: Metrics) -> list[Trajectory]:
    async with open_coordinator(job.config(data_dir), metrics, kit) as coordinator:
        await coordinator.submit(job.batch(samples_per_prompt=TRAJECTORIES))
        return await collect(coordinator, "b")


def count_of(metrics: Metrics, name: str, **labels: str) -> float:
    """A counter's value; 0 where it never counted."""
    return metrics.registry.get_sample_value(f"heddle_{name}_total", labels) or 0.0


def assert_nothing_lost(records: list[Trajectory], clean: list[Trajectory]) -> None:
    """Every trajectory ended as if nothing had happened, with the same tokens."""
    assert [record.stop_reason for record in records] == [StopReason.COMPLETED] * TRAJECTORIES
    assert [(record.trajectory_id, record.response_ids) for record in records] == [
        (record.trajectory_id, record.response_ids) for record in clean
    ]


async def test_a_worker_that_talks_nonsense_is_replaced_though_it_is_healthy(tmp_path: Path) -> None:
    """Its process runs and says that all is well; the circuit opens after so many failures in a row."""
    metrics = Metrics()
    work = job()
    kit = replace(work.kit(), launcher=LyingLauncher(work.launcher(), Lie(tokens=nonsense), liars=1))
    records = await run(work, kit, tmp_path / "liar", metrics)

    assert_nothing_lost(records, await job().run_many(tmp_path / "clean", TRAJECTORIES))
    assert count_of(metrics, "circuit_breaks", worker="w0") == 1
    assert count_of(metrics, "worker_restarts", worker="w0") == 1
    failed = count_of(metrics, "generation_failures", reason="worker_lost")
    assert SLOTS + FAILURES_BEYOND_SLOTS <= failed <= SLOTS + FAILURES_BEYOND_SLOTS + SLOTS


async def test_a_worker_that_talks_nonsense_in_its_last_life_is_given_up(tmp_path: Path) -> None:
    """Restarts end, and with them the trajectories that nobody can serve, by name."""
    metrics = Metrics()
    work = job(engine={"max_restarts": 0, "max_interruptions": 100})
    kit = replace(work.kit(), launcher=LyingLauncher(work.launcher(), Lie(tokens=nonsense)))
    records = await run(work, kit, tmp_path, metrics)

    assert count_of(metrics, "circuit_breaks", worker="w0") == 1
    assert {record.stop_reason for record in records} == {StopReason.ENGINE_FAILED}
    messages = {record.failure.message for record in records if record.failure is not None}
    assert len(messages) == 1
    assert "w0 is lost for good (replaced: its generations fail, one after the other" in messages.pop()


async def test_one_failure_among_successes_opens_nothing(tmp_path: Path) -> None:
    """Failures count in a row only."""
    chunks = 0

    def sometimes(chunk: TokenChunk) -> TokenChunk:
        nonlocal chunks
        chunks += 1
        return nonsense(chunk) if chunks % 3 == 0 else chunk

    metrics = Metrics()
    work = job()
    kit = replace(work.kit(), launcher=LyingLauncher(work.launcher(), Lie(tokens=sometimes)))
    records = await run(work, kit, tmp_path / "liar", metrics)

    assert_nothing_lost(records, await job().run_many(tmp_path / "clean", TRAJECTORIES))
    assert count_of(metrics, "generation_failures", reason="worker_lost") > SLOTS + FAILURES_BEYOND_SLOTS
    assert count_of(metrics, "circuit_breaks", worker="w0") == 0


@pytest.mark.parametrize("tokens", [0, 5])
async def test_a_worker_that_hangs_is_replaced_after_its_token_deadline(tokens: int, tmp_path: Path) -> None:
    """What came before the silence is kept; the slot is not held for longer than the deadline."""
    metrics = Metrics()
    hanging = FakeFaults(hang_after_tokens=tokens)
    work = job(faults=(hanging,), engine={"token_deadline_s": 0.05, "max_interruptions": 50})
    records = await run(work, work.kit(), tmp_path / "hang", metrics)

    assert_nothing_lost(records, await job().run_many(tmp_path / "clean", TRAJECTORIES))
    assert count_of(metrics, "generation_failures", reason="engine_timeout") >= 1
    assert count_of(metrics, "circuit_breaks", worker="w0") == 1


async def test_a_crash_does_not_open_the_circuit_as_well(tmp_path: Path) -> None:
    """All of its slots fail at once; the supervisor has it already."""
    metrics = Metrics()
    work = job(faults=(FakeFaults(crash_after_tokens=20),))
    records = await run(work, work.kit(), tmp_path / "crash", metrics)

    assert_nothing_lost(records, await job().run_many(tmp_path / "clean", TRAJECTORIES))
    assert count_of(metrics, "worker_restarts", worker="w0") == 1
    assert count_of(metrics, "circuit_breaks", worker="w0") == 0


async def test_a_worker_that_crawls_is_bounded_by_the_deadline_of_the_step(tmp_path: Path) -> None:
    """Tokens that trickle keep nothing alive beyond it; each attempt goes on where the last one stopped."""
    metrics = Metrics()
    words = "slowly, " * 8
    work = job(turn=lambda step: words, token_delay_s=0.003, engine={"step_deadline_s": 0.12})
    records = await run(work, work.kit(), tmp_path / "slow", metrics)

    assert_nothing_lost(records, await job(turn=lambda step: words).run_many(tmp_path / "c", TRAJECTORIES))
    assert count_of(metrics, "generation_failures", reason="engine_timeout") >= 1
    assert max(step.segments for record in records for step in record.steps) > 1
