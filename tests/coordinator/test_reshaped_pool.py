"""A pool that takes another shape for its last trajectory, through a whole coordinator on fake engines."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from job_harness import Job, collect

from heddle.app import open_coordinator
from heddle.control.commands import StartWorker
from heddle.control.events import WeightsCommitted
from heddle.control.replay import replay
from heddle.control.shape import ReshapeOutcome
from heddle.coordinator import housekeeping
from heddle.coordinator.assembly import EngineKit
from heddle.coordinator.service import Coordinator
from heddle.engines.supervisor import EngineLauncher, RunningWorker
from heddle.errors import ConfigError, EngineUnavailable
from heddle.eventlog import read_event_log
from heddle.metrics import Metrics
from heddle.records import Trajectory
from heddle.types import TrajectoryStatus, WorkerSpec

SHORT = [{"output_tokens": 5}]
LONG = [{"output_tokens": 20, "tool_seconds": 0.1}] * 7 + [{"output_tokens": 10}]
PROFILE = """gpu,model,tp,batch,context_len,tpot_ms,kv_capacity_tokens,prefill_tokens_per_s
any,any,1,1,1024,1000,1000000,1e9
any,any,2,1,1024,100,1000000,1e9
"""
"""So slow that a larger worker seems worth any start."""


def make_job(directory: Path, reshaper: str = "tail") -> Job:
    """One long trajectory and two short ones, on three workers of degree 1."""
    directory.mkdir(parents=True, exist_ok=True)
    profile = directory / "profile.csv"
    profile.write_text(PROFILE)
    return Job(
        pool="1+1+1",
        decisions={
            "reshaper": reshaper,
            "worker_start_s": 0.05,
            "predictor": "oracle",
            "profile": profile,
            "transfer_tokens_per_s": 1e9,
        },
        request={
            "environment": "replay",
            "prompts": [{"task": {"steps": steps}} for steps in (LONG, SHORT, SHORT)],
        },
    )


class Large:
    """Launches as another does, but for workers of more than one unit: those never come up, or kill."""

    def __init__(self, launcher: EngineLauncher, *, deadly: bool = False) -> None:
        self._launcher = launcher
        self._deadly = deadly

    async def launch(self, spec: WorkerSpec, log_path: Path) -> RunningWorker:
        if spec.tp_degree > 1:
            if self._deadly:
                os.kill(os.getpid(), signal.SIGKILL)
            raise EngineUnavailable("no room for a large one")
        return await self._launcher.launch(spec, log_path)


async def pool_of(coordinator: Coordinator, *degrees: int) -> None:
    """Wait until the pool is that, and all of it serves."""
    async with asyncio.timeout(10):
        while True:
            workers = await coordinator.workers()
            if sorted(w.tp_degree for w in workers if w.phase == "ready") == sorted(degrees):
                return
            await asyncio.sleep(0.01)


async def run(
    job: Job, data_dir: Path, kit: EngineKit | None = None, metrics: Metrics | None = None
) -> tuple[list[Trajectory], dict[ReshapeOutcome, int]]:
    """Records, and what became of reshapes, when the pool is again as it was."""
    async with open_coordinator(job.config(data_dir), metrics, kit or job.kit()) as coordinator:
        await pool_of(coordinator, 1, 1, 1)
        await coordinator.submit(job.batch())
        records = await collect(coordinator, "b")
        await pool_of(coordinator, 1, 1, 1)
        await asyncio.sleep(3 * housekeeping.TICK_S)
    return records, outcomes(data_dir)


def outcomes(data_dir: Path) -> dict[ReshapeOutcome, int]:
    """As a replay of the event log has them, which must equal it byte for byte."""
    [path] = (data_dir / "events").iterdir()
    log = read_event_log(path)
    report = replay(log.settings, log.entries)
    assert report.equal
    starts = [c.spec.tp_degree for e in log.entries for c in e.commands if isinstance(c, StartWorker)]
    ordered = starts.count(2)
    return {ReshapeOutcome.ORDERED: ordered, ReshapeOutcome.RESTORED: (starts.count(1) - 3) // 2}


@pytest.fixture(autouse=True)
def _fast_house(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "TICK_S", 0.01)


async def test_the_last_trajectory_goes_on_at_a_larger_worker(tmp_path: Path) -> None:
    """With the same tokens as anywhere else; and the pool grows back behind it."""
    metrics = Metrics()
    stayed, _ = await run(make_job(tmp_path, "none"), tmp_path / "stayed")
    moved, became = await run(make_job(tmp_path), tmp_path / "moved", metrics=metrics)

    assert became == {ReshapeOutcome.ORDERED: 1, ReshapeOutcome.RESTORED: 1}
    assert [record.response_ids for record in moved] == [record.response_ids for record in stayed]
    assert {record.status for record in moved} == {TrajectoryStatus.COMPLETED}
    long = max(moved, key=lambda record: record.sampled_tokens)
    assert long.steps[0].tp_degree == 1
    assert long.steps[-1].tp_degree == 2
    shown = metrics.render().decode()
    for outcome in ("ordered", "done", "restored"):
        assert f'heddle_reshapes_total{{outcome="{outcome}"}} 1.0' in shown
    assert "heddle_worker_start_seconds 0.0\n" not in shown


async def test_a_larger_worker_that_does_not_start_costs_nothing(tmp_path: Path) -> None:
    """The former workers come back, and the trajectory goes on where it was."""
    stayed, _ = await run(make_job(tmp_path, "none"), tmp_path / "stayed")
    job = make_job(tmp_path)
    kit = replace(job.kit(), launcher=Large(job.launcher()))
    records, became = await run(job, tmp_path / "failed", kit)
    assert became == {ReshapeOutcome.ORDERED: 1, ReshapeOutcome.RESTORED: 1}
    assert [record.response_ids for record in records] == [record.response_ids for record in stayed]
    assert {step.tp_degree for record in records for step in record.steps} == {1}


def die_reshaping(directory: Path, data_dir: Path) -> None:
    """A coordinator that is killed as the larger worker starts; the target of a process."""
    job = make_job(directory)
    kit = replace(job.kit(), launcher=Large(job.launcher(), deadly=True))
    asyncio.run(run(job, data_dir, kit))


async def test_a_coordinator_killed_in_a_reshape_goes_on_with_its_own_pool(tmp_path: Path) -> None:
    stayed, _ = await run(make_job(tmp_path, "none"), tmp_path / "stayed")
    data_dir = tmp_path / "killed"
    process = multiprocessing.get_context("spawn").Process(target=die_reshaping, args=(tmp_path, data_dir))
    process.start()
    await asyncio.to_thread(process.join, 60)
    assert process.exitcode == -signal.SIGKILL
    job = make_job(tmp_path)
    async with open_coordinator(job.config(data_dir), kit=job.kit()) as coordinator:
        records = await collect(coordinator, "b")
        await pool_of(coordinator, 1, 1, 1)
    assert [record.response_ids for record in records] == [record.response_ids for record in stayed]
    assert {record.status for record in records} == {TrajectoryStatus.COMPLETED}


async def test_no_reshape_where_a_new_worker_could_not_load_what_was_pushed(tmp_path: Path) -> None:
    """A coordinator that finds pushed weights tells its control plane before anything else."""
    data_dir = tmp_path / "pushed"
    data_dir.mkdir()
    (data_dir / "weights.json").write_text('{"version": 3, "path": null, "content": ""}')
    records, became = await run(make_job(tmp_path), data_dir)
    assert became == {ReshapeOutcome.ORDERED: 0, ReshapeOutcome.RESTORED: 0}
    assert len(records) == 3
    [path] = (data_dir / "events").iterdir()
    assert read_event_log(path).entries[0].event == WeightsCommitted(reloadable=False)


async def test_servers_that_run_already_keep_their_shape(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    with pytest.raises(ConfigError, match="reshaper"):
        async with open_coordinator(job.config(tmp_path), kit=replace(job.kit(), pool="1+1+1")):
            pass
