"""The blocking twin: same results, from threads that have no event loop."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "api"))  # the scripted server lives with its own tests

from rest_harness import make_server, until
from scripted_service import ScriptedService

from heddle.client import Client, SyncClient
from heddle.errors import NotFound

PROMPTS = [{"task": {"question": "1 + 1?"}}]


async def test_a_rollout_blocks_until_the_batch_is_over() -> None:
    """A plain ``for`` gives every trajectory."""
    service = ScriptedService()
    async with make_server(service) as server:

        def roll() -> list[str]:
            with SyncClient(server.url) as client:
                return [t.trajectory_id for t in client.rollout(PROMPTS, samples_per_prompt=3, batch_id="s")]

        rolling = asyncio.create_task(asyncio.to_thread(roll))
        await until(lambda: "s" in service.known)
        service.finish("s", 3)
        received = await rolling

    assert received == ["s-g0-t0", "s-g0-t1", "s-g0-t2"]


async def test_leaving_an_iteration_early_ends_its_poll() -> None:
    """A ``break`` leaves no request behind at the server."""
    service = ScriptedService()
    async with make_server(service) as server:

        def first_event() -> str:
            with SyncClient(server.url) as client:
                for event in client.events(after=0):
                    return event.name
            return ""

        service.emit("worker.ready", {})
        name = await asyncio.to_thread(first_event)
        await until(lambda: service.streams_open == 0)

    assert name == "worker.ready"


async def test_every_call_of_the_client_has_its_twin() -> None:
    """The calls answer as the asynchronous ones do, errors included."""
    service = ScriptedService()
    async with make_server(service) as server:

        def calls() -> list[object]:
            with SyncClient(server.url) as client:
                client.submit(PROMPTS, batch_id="c")
                client.pause()
                client.resume()
                with pytest.raises(NotFound):
                    client.batch("none")
                return [
                    [batch.batch_id for batch in client.batches()],
                    client.batch("c").total,
                    client.explain("c-g0-t0").phase,
                    client.trajectory("c-g0-t0"),
                    client.cancel("c").state,
                    [t.stop_reason for t in client.trajectories("c")],
                    client.add_worker(tp_degree=2).worker_id,
                    client.remove_worker("w0").phase,
                    len(client.workers()),
                ]

        answers = await asyncio.to_thread(calls)

    assert answers == [["c"], 1, "queued", None, "cancelled", ["cancelled"], "w1", "draining", 2]


def test_closing_ends_the_thread_and_can_be_repeated() -> None:
    """Nothing of a closed client is left running."""
    client = SyncClient("http://127.0.0.1:9")
    running = [thread.name for thread in threading.enumerate()]
    client.close()
    client.close()

    assert "heddle-client" in running
    assert "heddle-client" not in [thread.name for thread in threading.enumerate()]


def test_the_twins_have_the_same_methods() -> None:
    """What one can do the other can."""
    public = {name for name in vars(Client) if not name.startswith("_")}

    assert public == {name for name in vars(SyncClient) if not name.startswith("_")}
