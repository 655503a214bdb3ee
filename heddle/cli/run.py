"""``heddle run``: a coordinator for one batch in this process.

Records are written as they arrive, beside ``FILE``, which takes its name when the batch is over: a ``FILE``
is always a whole one, and an older one stays until then. An interruption cancels the batch, collects what
has ended (every trajectory gets a record, cancelled ones too) and then releases everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from heddle.api.schemas import BatchRequest
from heddle.api.service import BatchStatus, TrajectoryPage, WorkerStatus
from heddle.cli.logs import log_to_file
from heddle.cli.output import CommandFailed, ExitCode, Output, check_writable
from heddle.cli.progress import BatchProgress, show_progress
from heddle.cli.results import BatchSummary, Tally, results_table
from heddle.cli.signals import interrupts, run_interruptible
from heddle.cli.tasks import TaskFile
from heddle.config import HeddleConfig
from heddle.errors import InvalidRequest
from heddle.export.files import LineWriter, line_writer
from heddle.records import decode_trajectory
from heddle.types import TrajectoryStatus

PAGE_LIMIT = 200
"""Records fetched at once; bounds the memory of a large batch."""
POLL_S = 0.5
"""Longest wait for new records before progress is shown again."""
DRAIN_TIMEOUT_S = 20.0
"""How long an interrupted run waits for its cancelled trajectories to end."""

SETTLE_TIMEOUT_S = 10.0
SETTLE_POLL_S = 0.02


class BatchService(Protocol):
    """What a run needs of the coordinator; a part of ``RolloutService``."""

    async def submit(self, request: BatchRequest) -> tuple[BatchStatus, bool]: ...

    async def batch(self, batch_id: str) -> BatchStatus: ...

    async def cancel(self, batch_id: str) -> BatchStatus: ...

    async def trajectories(
        self, batch_id: str, *, after: str | None, limit: int, wait_s: float
    ) -> TrajectoryPage: ...

    async def workers(self) -> Sequence[WorkerStatus]: ...


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """A run that is over, and where its files are."""

    summary: BatchSummary
    cancelled: bool
    out: Path
    data_dir: Path

    def to_json(self) -> dict[str, object]:
        """The document of ``heddle run --json``."""
        files = {"trajectories": str(self.out), "data_dir": str(self.data_dir)}
        return asdict(self.summary) | {"cancelled": self.cancelled, "files": files}


def run(config: HeddleConfig, tasks: TaskFile, request: BatchRequest, out: Path, output: Output) -> int:
    """Run the batch, show its results and return the exit code."""
    check_writable(out, "--out")
    with line_writer(out) as sink, log_to_file(config):
        try:
            summary, cancelled = run_interruptible(_run_in_process(config, request, sink))
        except InvalidRequest as exc:
            raise tasks.locate(exc) from exc
    show_outcome(RunOutcome(summary, cancelled, out.resolve(), config.data_dir.resolve()), output)
    failed = cancelled or summary.by_status.get(TrajectoryStatus.FAILED, 0) > 0
    return ExitCode.FAILED if failed else ExitCode.OK


async def _run_in_process(
    config: HeddleConfig, request: BatchRequest, sink: LineWriter
) -> tuple[BatchSummary, bool]:
    from heddle.app import open_coordinator  # imported late: it loads every adapter

    with show_progress() as progress, interrupts() as signals:
        progress.stage(f"starting workers ({config.engine.kind} engine, pool {config.engine.pool})")
        async with open_coordinator(config) as service:
            signals.stop = stop = asyncio.Event()  # from here on the first signal cancels the batch only
            return await run_batch(service, request, sink, progress, stop)


async def run_batch(
    service: BatchService,
    request: BatchRequest,
    sink: LineWriter,
    progress: BatchProgress,
    stop: asyncio.Event,
) -> tuple[BatchSummary, bool]:
    """Submit ``request`` and write every record to ``sink``.

    The batch is cancelled where ``stop`` is set; the flag says whether it was. Raises ``CommandFailed``
    where its trajectories do not end then.
    """
    status, _ = await service.submit(request)
    progress.update(status)
    collector = _Collector(service, status.batch_id, sink, progress)
    cancelled = False
    while not await collector.collect_page():
        if stop.is_set():
            cancelled = True
            progress.stage("cancelling")
            await _drain(service, status.batch_id, collector)
            break
    makespan_s = await _duration_s(service, status.batch_id)
    restarts = sum(worker.restarts for worker in await service.workers())
    summary = collector.tally.summary(status.batch_id, makespan_s=makespan_s, engine_restarts=restarts)
    return summary, cancelled


class _Collector:
    """Carries finished records from the service to the sink, each once, and counts them."""

    def __init__(
        self, service: BatchService, batch_id: str, sink: LineWriter, progress: BatchProgress
    ) -> None:
        self.tally = Tally()
        self._service = service
        self._batch_id = batch_id
        self._sink = sink
        self._progress = progress
        self._cursor: str | None = None

    async def collect_page(self) -> bool:
        """Wait up to ``POLL_S`` for finished records; True where the batch is over."""
        page = await self._service.trajectories(
            self._batch_id, after=self._cursor, limit=PAGE_LIMIT, wait_s=POLL_S
        )
        await self._keep(page)
        self._progress.update(await self._service.batch(self._batch_id))
        return page.finished

    async def _keep(self, page: TrajectoryPage) -> None:
        trajectories = [decode_trajectory(record) for record in page.records]
        await asyncio.to_thread(self._write, page.records)
        for trajectory in trajectories:
            self.tally.add(trajectory)
        self._cursor = page.cursor

    def _write(self, records: Sequence[bytes]) -> None:
        for record in records:
            self._sink.write_line(record)


async def _drain(service: BatchService, batch_id: str, collector: _Collector) -> None:
    try:
        async with asyncio.timeout(DRAIN_TIMEOUT_S):
            await service.cancel(batch_id)
            while not await collector.collect_page():
                pass
    except TimeoutError as exc:
        raise CommandFailed(
            f"{batch_id} was cancelled but had not ended {DRAIN_TIMEOUT_S:g} s later"
        ) from exc


async def _duration_s(service: BatchService, batch_id: str) -> float:
    """From acceptance to end. The end is noted a moment after the last record is visible."""
    try:
        async with asyncio.timeout(SETTLE_TIMEOUT_S):
            while True:
                status = await service.batch(batch_id)
                if status.finished_at is not None:
                    return status.finished_at - status.created_at
                await asyncio.sleep(SETTLE_POLL_S)
    except TimeoutError as exc:
        raise CommandFailed(f"all of {batch_id} has ended, but the batch is still open") from exc


def show_outcome(outcome: RunOutcome, output: Output) -> None:
    """The end of a run: JSON, or the table, the files, and how to go on."""
    if output.json:
        output.document(outcome.to_json())
        return
    output.text(results_table(outcome.summary))
    output.text(f"trajectories: {outcome.out}")
    output.text(f"store, event logs, worker logs: {outcome.data_dir}")
    output.text(
        "go on with: heddle export FILE --format verl|slime|parquet --out OUT   (for a trainer)\n"
        "            heddle serve                                              (REST, many batches)"
    )
