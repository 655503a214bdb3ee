"""Running one batch against a scripted service: pages, cancellation, each record once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from cli_builders import make_status, make_trajectory

from heddle.api.schemas import BatchRequest, PromptRequest
from heddle.api.service import BatchStatus, TrajectoryPage, WorkerStatus
from heddle.cli import run as run_module
from heddle.cli.output import CommandFailed
from heddle.cli.progress import SilentProgress
from heddle.cli.run import run_batch
from heddle.export.files import LineWriter, read_trajectories
from heddle.records import encode_trajectory
from heddle.types import StopReason

REQUEST = BatchRequest(environment="math", prompts=[PromptRequest(task={})], samples_per_prompt=2)


class ScriptedService:
    """Two trajectories: the first is there at once, the second when ``release`` is set or on cancel."""

    def __init__(self, *, obeys_cancel: bool = True) -> None:
        self.release = asyncio.Event()
        self.waiting = asyncio.Event()
        self.cancelled = asyncio.Event()
        self._obeys_cancel = obeys_cancel

    async def submit(self, request: BatchRequest) -> tuple[BatchStatus, bool]:
        return make_status(), True

    async def batch(self, batch_id: str) -> BatchStatus:
        over = self.release.is_set()
        return make_status(finished=2 if over else 1, finished_at=104.0 if over else None)

    async def cancel(self, batch_id: str) -> BatchStatus:
        self.cancelled.set()
        if self._obeys_cancel:
            self.release.set()
        return await self.batch(batch_id)

    async def trajectories(
        self, batch_id: str, *, after: str | None, limit: int, wait_s: float
    ) -> TrajectoryPage:
        if after is None:
            return TrajectoryPage([encode_trajectory(make_trajectory())], cursor="1", finished=False)
        self.waiting.set()
        if not await released(self.release, wait_s):
            return TrajectoryPage([], cursor=after, finished=False)
        reason = StopReason.CANCELLED if self.cancelled.is_set() else StopReason.COMPLETED
        second = make_trajectory(trajectory_id="b-g0-t1", stop_reason=reason)
        return TrajectoryPage([encode_trajectory(second)], cursor="2", finished=True)

    async def workers(self) -> Sequence[WorkerStatus]:
        return [
            WorkerStatus(
                worker_id="w0",
                tp_degree=1,
                slots=4,
                phase="ready",
                running=0,
                waiting=0,
                resident=0,
                restarts=3,
                queue=(),
                url=None,
                log_path=None,
                pid=None,
            )
        ]


async def released(event: asyncio.Event, wait_s: float) -> bool:
    """Whether ``event`` is set within ``wait_s``."""
    try:
        async with asyncio.timeout(wait_s):
            return await event.wait()
    except TimeoutError:
        return False


@pytest.fixture
def stop() -> asyncio.Event:
    """What the first signal sets."""
    return asyncio.Event()


@pytest.fixture
def sink(tmp_path: Path) -> Iterator[LineWriter]:
    """Where the records go; each line is in the file at once."""
    path = tmp_path / "out.jsonl"
    with path.open("wb") as file:
        yield LineWriter(file, path)


def written_ids(tmp_path: Path) -> list[str]:
    """The ids of the records in the file, in order."""
    return [record.trajectory_id for record in read_trajectories(tmp_path / "out.jsonl")]


async def test_every_record_is_written_once_and_counted(
    sink: LineWriter, stop: asyncio.Event, tmp_path: Path
) -> None:
    """A finished run has all records, and figures from the service's own times."""
    service = ScriptedService()
    service.release.set()
    summary, cancelled = await run_batch(service, REQUEST, sink, SilentProgress(), stop)
    assert written_ids(tmp_path) == ["b-g0-t0", "b-g0-t1"]
    assert (summary.trajectories, summary.makespan_s, summary.engine_restarts) == (2, 4.0, 3)
    assert not cancelled


async def test_an_interruption_cancels_the_batch_and_keeps_what_ended(
    sink: LineWriter, stop: asyncio.Event, tmp_path: Path
) -> None:
    """After the first signal, the cancelled trajectories still get their records, none twice."""
    service = ScriptedService()
    task = asyncio.create_task(run_batch(service, REQUEST, sink, SilentProgress(), stop))
    await service.waiting.wait()
    stop.set()
    summary, cancelled = await task
    assert cancelled
    assert service.cancelled.is_set()
    assert written_ids(tmp_path) == ["b-g0-t0", "b-g0-t1"]
    assert summary.by_status == {"completed": 1, "aborted": 1}


async def test_a_second_interruption_does_not_wait(sink: LineWriter, stop: asyncio.Event) -> None:
    """The person insists: the task ends cancelled, and its context managers unwind."""
    service = ScriptedService(obeys_cancel=False)
    task = asyncio.create_task(run_batch(service, REQUEST, sink, SilentProgress(), stop))
    stop.set()
    await service.cancelled.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_batch_that_does_not_end_after_its_cancellation_is_an_error(
    sink: LineWriter, stop: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait for cancelled trajectories has a deadline."""
    monkeypatch.setattr(run_module, "DRAIN_TIMEOUT_S", 0.01)
    service = ScriptedService(obeys_cancel=False)
    task = asyncio.create_task(run_batch(service, REQUEST, sink, SilentProgress(), stop))
    stop.set()
    with pytest.raises(CommandFailed, match="had not ended"):
        await task


async def test_a_cancellation_without_a_signal_is_not_swallowed(
    sink: LineWriter, stop: asyncio.Event
) -> None:
    """A task group cancels its body when something in it fails: that error must come out."""
    service = ScriptedService()
    task = asyncio.create_task(run_batch(service, REQUEST, sink, SilentProgress(), stop))
    await service.waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not service.cancelled.is_set()
