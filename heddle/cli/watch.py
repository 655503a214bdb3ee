"""``heddle watch``: what happens at a server, live.

On a terminal a table that is drawn anew at every event and at least every :data:`REFRESH_S`; with ``--json``
the events themselves, one a line. Following one batch ends with it.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict

from rich.console import Console, RenderableType
from rich.live import Live

from heddle.api.service import BatchStatus, ServerEvent
from heddle.cli.output import ExitCode, Output
from heddle.cli.remote import Server, batches_table, overview
from heddle.cli.signals import interrupts, run_interruptible
from heddle.client import Client

REFRESH_S = 2.0
"""Longest time between two looks: phases change without an event."""
MIN_REFRESH_S = 0.25
"""Shortest time between two looks: a flood of events must not become a flood of requests."""

RUNNING = "running"
GAP = "gap"
"""The event that stands for those which the server no longer has."""


def watch(server: Server, batch_id: str | None, output: Output) -> int:
    """Follow until the batch is over or somebody interrupts; both end well."""
    return run_interruptible(_watch(server, batch_id, output))


async def _watch(server: Server, batch_id: str | None, output: Output) -> int:
    stop = asyncio.Event()
    async with server.client() as client, asyncio.TaskGroup() as group:
        with interrupts(stop):
            follow = _print_events if output.json else _draw
            following = group.create_task(follow(client, batch_id, output))
            stopping = group.create_task(stop.wait())
            await asyncio.wait({following, stopping}, return_when=asyncio.FIRST_COMPLETED)
            following.cancel()
            stopping.cancel()
    return ExitCode.OK


async def _print_events(client: Client, batch_id: str | None, output: Output) -> None:
    if batch_id is None:
        async for event in client.events():
            output.line(asdict(event))
        return
    if (await client.batch(batch_id)).state == RUNNING:
        async for event in client.events(after=0):  # from the start: nothing of the batch is missed
            if event.data.get("batch_id") == batch_id:
                output.line(asdict(event))
            if await _is_end(client, event, batch_id):
                break
    output.line({"name": "status", "data": asdict(await client.batch(batch_id))})


async def _is_end(client: Client, event: ServerEvent, batch_id: str) -> bool:
    """The end of the batch, which may also lie in a gap: then only its state tells."""
    if event.name == GAP:
        return (await client.batch(batch_id)).state != RUNNING
    return event.name == "batch.finished" and event.data.get("batch_id") == batch_id


async def _draw(client: Client, batch_id: str | None, output: Output) -> None:
    changed = asyncio.Event()
    picture, finished = await _look(client, batch_id)
    with Live(picture, console=Console(), auto_refresh=False) as live:
        async with asyncio.TaskGroup() as group:
            listening = group.create_task(_listen(client, changed))
            while not finished:
                await _wait(changed, REFRESH_S)
                changed.clear()
                picture, finished = await _look(client, batch_id)
                live.update(picture, refresh=True)
                await asyncio.sleep(MIN_REFRESH_S)
            listening.cancel()


async def _listen(client: Client, changed: asyncio.Event) -> None:
    async for _ in client.events():
        changed.set()


async def _look(client: Client, batch_id: str | None) -> tuple[RenderableType, bool]:
    if batch_id is not None:
        batch: BatchStatus = await client.batch(batch_id)
        return batches_table([batch]), batch.state != RUNNING
    batches, workers = await asyncio.gather(client.batches(), client.workers())
    return overview([batch for batch in batches if batch.state == RUNNING], workers), False


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return
