"""What engines say falsely is caught on its way to a trainer, named, counted and kept apart."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from job_harness import Job, call_text, collect
from lying_engine import Lie, LyingLauncher

from heddle.agent.ports import Generation, TokenChunk
from heddle.app import open_coordinator
from heddle.metrics import Metrics
from heddle.records import FailureKind, Trajectory
from heddle.store.gates import MIN_TOKENS_TO_SUSPECT, Gate
from heddle.types import SamplingParams, StopReason, TrajectoryStatus

TRAJECTORIES = 12
LONG_TURN = "x" * MIN_TOKENS_TO_SUSPECT


def logprobs(value: float) -> Lie:
    """Every token has this logprob."""
    return Lie(tokens=lambda chunk: replace(chunk, logprobs=[value] * len(chunk.token_ids)))


def only_the_last(value: float) -> Lie:
    """One bad logprob among good ones."""

    def spoil(chunk: TokenChunk) -> TokenChunk:
        return replace(chunk, logprobs=[*chunk.logprobs[:-1], value])

    return Lie(tokens=spoil)


def versions(*told: int) -> Lie:
    """The weight versions that successive generations claim, the last one for good."""

    def claim(generation: Generation, number: int) -> Generation:
        return replace(generation, weight_version=told[min(number, len(told) - 1)])

    return Lie(generation=claim)


def echo(sampling: SamplingParams | None) -> Lie:
    """The engine samples by parameters of its own."""
    return Lie(generation=lambda generation, _: replace(generation, echoed_sampling=sampling))


LIES = [
    (Gate.LOGPROBS, logprobs(math.nan)),
    (Gate.LOGPROBS, only_the_last(-math.inf)),
    (Gate.LOGPROBS, only_the_last(0.5)),
    (Gate.ZERO_LOGPROBS, logprobs(0.0)),
    (Gate.WEIGHT_VERSIONS, versions(-1)),
    (Gate.SAMPLING, echo(SamplingParams(temperature=0.6, top_p=0.95))),
]


async def run(lie: Lie, data_dir: Path, metrics: Metrics, job: Job) -> tuple[list[Trajectory], list[str]]:
    """The records of a batch on lying engines, and the gates of what is in quarantine."""
    kit = job.kit()
    kit = replace(kit, launcher=LyingLauncher(job.launcher(), lie))
    async with open_coordinator(job.config(data_dir), metrics, kit) as coordinator:
        await coordinator.submit(job.batch(samples_per_prompt=TRAJECTORIES))
        records = await collect(coordinator, "b")
        page = await coordinator.quarantine(after=None, limit=1000)
        assert [entry.trajectory_id for entry in page.trajectories if entry.batch_id != "b"] == []
        assert page.counts == dict.fromkeys(page.counts, len(page.trajectories))
        return records, [finding.gate for entry in page.trajectories for finding in entry.findings]


@pytest.mark.parametrize(("gate", "lie"), LIES)
async def test_every_record_of_a_lying_engine_is_refused_by_its_gate(
    gate: Gate, lie: Lie, tmp_path: Path
) -> None:
    """All of them, for the one reason; none of them is a sample, and the batch is complete."""
    metrics = Metrics()
    job = Job(turn=lambda step: LONG_TURN, slots=4)
    records, gates = await run(lie, tmp_path, metrics, job)

    assert gates == [gate] * TRAJECTORIES
    assert len(records) == TRAJECTORIES
    for record in records:
        assert (record.status, record.stop_reason) == (TrajectoryStatus.FAILED, StopReason.ENGINE_FAILED)
        assert record.failure is not None
        assert (record.failure.kind, record.failure.stage) == (FailureKind.INFRA, "gate")
        assert (record.reward, record.reward_info) == (None, {})
    assert f'heddle_quarantined_total{{gate="{gate}"}} {TRAJECTORIES}.0'.encode() in metrics.render()


async def test_weights_that_go_backwards_within_a_trajectory_are_refused(tmp_path: Path) -> None:
    """A worker that came back with old weights."""
    job = Job(turn=lambda step: call_text("echo") if step < 2 else "Done.", pool="1", slots=1)
    _, gates = await run(versions(8, 7), tmp_path, Metrics(), job)
    assert gates == [Gate.WEIGHT_VERSIONS]


@pytest.mark.parametrize(("bound", "expected"), [(1, [Gate.VERSION_SPAN]), (2, []), (None, [])])
async def test_weights_too_far_apart_within_a_trajectory_are_refused(
    bound: int | None, expected: list[Gate], tmp_path: Path
) -> None:
    """Where a bound is configured: one is sampled by the weights 5, 6 and 7, the others by 7."""
    rollouts: dict[str, object] = {} if bound is None else {"max_version_span": bound}
    job = Job(pool="1", slots=1, rollouts=rollouts)
    records, gates = await run(versions(5, 6, 7), tmp_path, Metrics(), job)
    assert gates == expected
    assert len(records) == TRAJECTORIES


@pytest.mark.parametrize("honest", [Lie(), echo(None), versions(0, 0, 1), only_the_last(0.0)])
async def test_what_an_honest_engine_may_say_is_no_alarm(honest: Lie, tmp_path: Path) -> None:
    """An engine that tells nothing, new weights, a certain token."""
    metrics = Metrics()
    records, gates = await run(honest, tmp_path, metrics, Job(pool="1", slots=1))
    assert gates == []
    assert {record.failure for record in records} == {None}
    assert b"heddle_quarantined_total{" not in metrics.render()


async def test_the_quarantine_survives_a_restart_and_comes_in_pages(tmp_path: Path) -> None:
    """It is committed with the record that stands for what was refused."""
    await run(logprobs(math.nan), tmp_path, Metrics(), Job())
    async with Job().coordinator(tmp_path) as coordinator:
        first = await coordinator.quarantine(after=None, limit=TRAJECTORIES - 1)
        rest = await coordinator.quarantine(after=first.cursor, limit=1000)
        end = await coordinator.quarantine(after=rest.cursor, limit=1000)
    assert len(first.trajectories) == TRAJECTORIES - 1
    assert len(rest.trajectories) == 1
    assert first.counts == rest.counts == {"logprobs": TRAJECTORIES}
    assert (end.trajectories, end.cursor) == ([], rest.cursor)
