"""A coordinator that is told to rehearses its last batch before it starts a worker."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from job_harness import Job, collect

from heddle.app import open_coordinator
from heddle.errors import ConfigError

PROFILE = "tp,batch,tpot_ms,prefill_tokens_per_s\n1,1,10,5000\n1,8,14,5000\n2,1,5,9000\n2,8,7,9000\n"
"""A worker of degree 2 is twice as fast."""


async def degrees(job: Job, data_dir: Path) -> list[int]:
    """Of the workers that a coordinator starts with; it runs a batch of four."""
    kit = replace(job.kit(), budget=2)
    async with open_coordinator(job.config(data_dir), kit=kit) as coordinator:
        status, _ = await coordinator.submit(job.batch(batch_id=None, samples_per_prompt=4))
        await collect(coordinator, status.batch_id)
        return [worker.tp_degree for worker in await coordinator.workers()]


def job(tmp_path: Path, **decisions: object) -> Job:
    """Two workers of degree 1, unless a rehearsal knows better."""
    profile = tmp_path / "profile.csv"
    profile.write_text(PROFILE)
    return Job(decisions={"profile": profile, "rehearse": tmp_path / "data", **decisions})


async def test_the_second_start_has_learned_from_the_first_batch(tmp_path: Path) -> None:
    """With nothing recorded the configured workers are started, afterwards those that are faster."""
    rehearsing = job(tmp_path)

    assert await degrees(rehearsing, tmp_path / "data") == [1, 1]
    assert await degrees(rehearsing, tmp_path / "data") == [2]


async def test_a_rehearsal_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    """The configured workers are started then."""
    rehearsing = job(tmp_path, rehearse_within_s=0.05)

    assert await degrees(rehearsing, tmp_path / "data") == [1, 1]
    assert await degrees(rehearsing, tmp_path / "data") == [1, 1]


async def test_what_cannot_be_rehearsed_is_an_error_at_the_start(tmp_path: Path) -> None:
    """A profile without prefill rates, no profile, and a file that is no recording."""
    rates = job(tmp_path)
    await degrees(rates, tmp_path / "data")
    (tmp_path / "profile.csv").write_text("tp,batch,tpot_ms\n1,1,10\n2,1,5\n")
    with pytest.raises(ConfigError, match="prefill_tokens_per_s"):
        await degrees(rates, tmp_path / "data")
    with pytest.raises(ConfigError, match=r"needs decisions\.profile"):
        await degrees(Job(decisions={"rehearse": tmp_path / "data"}), tmp_path / "data")
    foreign = tmp_path / "foreign.jsonl"
    foreign.write_text("{}\n")
    with pytest.raises(ConfigError, match="no known format"):
        await degrees(job(tmp_path, rehearse=foreign), tmp_path / "data")
