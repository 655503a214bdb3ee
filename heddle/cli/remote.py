"""Commands that ask a running server: ``submit``, ``status``, ``cancel``."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from rich.console import Group
from rich.table import Table

from heddle.api.schemas import BatchRequest
from heddle.api.service import BatchStatus, WorkerStatus
from heddle.cli.output import ExitCode, Output
from heddle.cli.signals import run_interruptible
from heddle.cli.tasks import TaskFile
from heddle.client import Client, RetryPolicy
from heddle.errors import InvalidRequest

PATIENCE = RetryPolicy(first_s=0.1, longest_s=1.0, budget_s=3.0)
"""A person waits at the other end: long enough for a restart of the server to be noticed as one."""


@dataclass(frozen=True, slots=True)
class Server:
    """Where a server is, and what it wants to see."""

    url: str
    token: str | None

    def client(self) -> Client:
        """A client to it; close it. Raises ``InvalidRequest`` where URL or token cannot be."""
        try:
            return Client(self.url, self.token, retry=PATIENCE)
        except InvalidRequest as exc:
            raise InvalidRequest(exc.message, path=f"--{exc.path}") from exc


def submit(server: Server, tasks: TaskFile, request: BatchRequest, output: Output) -> int:
    """Send the batch and tell its id."""

    async def send() -> BatchStatus:
        async with server.client() as client:
            return await client.submit(request)

    try:
        status = run_interruptible(send())
    except InvalidRequest as exc:
        raise tasks.locate(exc) from exc
    if output.json:
        output.document(status)
    else:
        output.text(f"{status.batch_id}: {status.total} trajectories, {status.state}")
        output.note(f"follow it with: heddle watch {status.batch_id}")
    return ExitCode.OK


def status(server: Server, batch_id: str | None, output: Output) -> int:
    """Show one batch, or all of them and the workers."""

    async def ask() -> tuple[Sequence[BatchStatus], Sequence[WorkerStatus]]:
        async with server.client() as client:
            if batch_id is not None:
                return [await client.batch(batch_id)], []
            batches, workers = await asyncio.gather(client.batches(), client.workers())
            return batches, workers

    batches, workers = run_interruptible(ask())
    if output.json:
        one = asdict(batches[0]) if batch_id is not None else None
        output.document(one or {"batches": batches, "workers": workers})
    elif batch_id is not None:
        output.text(batches_table(batches))
    else:
        output.text(overview(batches, workers))
    return ExitCode.OK


def cancel(server: Server, batch_id: str, output: Output) -> int:
    """Cancel a batch and show how it stands."""

    async def ask() -> BatchStatus:
        async with server.client() as client:
            return await client.cancel(batch_id)

    status = run_interruptible(ask())
    if output.json:
        output.document(status)
    else:
        output.text(f"{status.batch_id}: {status.state}, {status.finished}/{status.total} trajectories ended")
    return ExitCode.OK


def overview(batches: Sequence[BatchStatus], workers: Sequence[WorkerStatus]) -> Group:
    """Batches above, workers below."""
    return Group(batches_table(batches), workers_table(workers))


def batches_table(batches: Sequence[BatchStatus]) -> Table:
    """One line for each batch."""
    table = Table("batch", "state", "finished", "by status", "open", "tokens", "left")
    for batch in batches:
        table.add_row(
            batch.batch_id,
            batch.state,
            f"{batch.finished}/{batch.total}",
            _counts(batch.by_status),
            _counts(batch.by_phase),
            f"{batch.sampled_tokens:,}",
            f"{batch.eta_s:.0f} s" if batch.eta_s is not None else "",
        )
    return table


def workers_table(workers: Sequence[WorkerStatus]) -> Table:
    """One line for each worker."""
    table = Table("worker", "phase", "degree", "running", "waiting", "resident", "restarts", "url")
    for worker in workers:
        table.add_row(
            worker.worker_id,
            worker.phase,
            str(worker.tp_degree),
            f"{worker.running}/{worker.slots}",
            str(worker.waiting),
            str(worker.resident),
            str(worker.restarts),
            worker.url or "",
        )
    return table


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)
