"""The asynchronous client against a real server: types, errors, deduplication, restarts."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "api"))  # the scripted server lives with its own tests

from rest_harness import make_server, until
from scripted_service import ScriptedService

import heddle
from heddle.api.schemas import BatchRequest, PromptRequest
from heddle.client import Client, RetryPolicy, ServerFailure, Unauthorized
from heddle.client.sse import parse_events
from heddle.errors import Conflict, InvalidRequest, NotFound, StoreError, UnsupportedByEngine
from heddle.records import Trajectory

PROMPTS = [{"task": {"question": "1 + 1?"}}, {"task": {"question": "2 + 2?"}}]

PATIENT = RetryPolicy(first_s=0.02, longest_s=0.1, budget_s=20.0)
HASTY = RetryPolicy(first_s=0.01, longest_s=0.02, budget_s=0.1)


@asynccontextmanager
async def connected(
    service: ScriptedService, *, token: str | None = None, retry: RetryPolicy = PATIENT
) -> AsyncIterator[Client]:
    """A client of a running server."""
    async with make_server(service, token=token) as server, Client(server.url, token, retry=retry) as client:
        yield client


async def test_rollout_submits_and_gives_each_trajectory_as_it_finishes() -> None:
    """Trajectories come while others are open, and the iteration ends with the batch."""
    service = ScriptedService()
    async with connected(service) as client:
        received: list[Trajectory] = []
        async for trajectory in start_finishing(client, service):
            received.append(trajectory)
            if len(received) < 4:
                service.finish("roll")

    assert service.known["roll"].trajectory_ids == [t.trajectory_id for t in received]
    assert [t.reward for t in received] == [1.0] * 4


def start_finishing(client: Client, service: ScriptedService) -> AsyncIterator[Trajectory]:
    """A rollout of four whose first trajectory finishes as soon as it is submitted."""

    async def finish_first() -> None:
        await until(lambda: "roll" in service.known)
        service.finish("roll")

    asyncio.get_running_loop().create_task(finish_first())
    return client.rollout(PROMPTS, samples_per_prompt=2, batch_id="roll")


async def test_submit_takes_plain_prompts_or_a_whole_request() -> None:
    """Both forms give the same batch; an id is made where there is none."""
    service = ScriptedService()
    async with connected(service) as client:
        plain = await client.submit(PROMPTS, samples_per_prompt=3, limits={"max_steps": 2})
        request = BatchRequest(batch_id="whole", prompts=[PromptRequest(task={"question": "?"})])
        whole = await client.submit(request)
        listed = await client.batches()

    assert plain.total == 6
    assert plain.batch_id.startswith("b-")
    assert (whole.batch_id, whole.total) == ("whole", 1)
    assert listed == [whole, plain]


async def test_each_trajectory_comes_once_however_often_it_is_sent() -> None:
    """A server that repeats itself is at least once; the client makes it exactly once."""
    service = ScriptedService()
    async with connected(service) as client:
        await client.submit(PROMPTS, batch_id="twice")
        first, second = service.finish("twice", 2)
        batch = service.known["twice"]
        batch.records = [batch.records[0], batch.records[0], batch.records[1]]
        batch.trajectory_ids.append("twice-g2-t0")
        received = [t.trajectory_id async for t in client.trajectories("twice")]

    assert [first, second] == received


async def test_trajectories_go_on_after_a_cursor() -> None:
    """What was acknowledged before is not sent again."""
    service = ScriptedService()
    async with connected(service) as client:
        await client.submit(PROMPTS, batch_id="on")
        _, second = service.finish("on", 2)
        received = [t.trajectory_id async for t in client.trajectories("on", after="1")]

    assert [second] == received


async def test_an_iteration_survives_a_restart_of_the_server() -> None:
    """The poll breaks, the client knocks until somebody answers, and nothing is lost or doubled."""
    service = ScriptedService()
    server = make_server(service)
    await server.start()
    async with Client(server.url, retry=PATIENT) as client:
        await client.submit(PROMPTS, samples_per_prompt=2, batch_id="long")
        received: list[str] = []

        async def collect() -> None:
            async for trajectory in client.trajectories("long"):
                received.append(trajectory.trajectory_id)

        collecting = asyncio.create_task(collect())
        service.finish("long", 2)
        await until(lambda: len(received) == 2)
        await server.stop()
        await asyncio.sleep(0.1)
        again = make_server(service, port=server.port)
        async with again:
            service.finish("long", 2)
            async with asyncio.timeout(15):
                await collecting

    assert service.known["long"].trajectory_ids == received


async def test_events_go_on_after_a_restart() -> None:
    """The stream comes back with the last id it has seen."""
    service = ScriptedService()
    server = make_server(service)
    await server.start()
    async with Client(server.url, retry=PATIENT) as client:
        service.emit("worker.ready", {"worker_id": "w0"})
        events = client.events(after=0)
        first = await anext(events)
        await server.stop()
        again = make_server(service, port=server.port)
        async with again:
            service.emit("worker.lost", {"worker_id": "w0"})
            async with asyncio.timeout(15):
                second = await anext(events)
            await events.aclose()

    assert [first.name, second.name] == ["worker.ready", "worker.lost"]
    assert [first.event_id, second.event_id] == [1, 2]


async def test_nobody_there_is_a_failure_after_the_budget() -> None:
    """A server that never answers is given up with a sentence, not waited for without end."""
    gone = make_server(ScriptedService())
    await gone.start()
    await gone.stop()
    async with Client(gone.url, retry=HASTY) as client:
        with pytest.raises(ServerFailure, match="does not answer"):
            await client.batches()


async def test_orders_that_may_not_be_repeated_are_not() -> None:
    """A worker is ordered once, whatever becomes of the answer."""
    gone = make_server(ScriptedService())
    await gone.start()
    await gone.stop()
    async with Client(gone.url, retry=PATIENT) as client:
        with pytest.raises(ServerFailure, match="POST /v1/workers"):
            await client.add_worker(tp_degree=1)


async def test_errors_come_back_as_heddle_s_own() -> None:
    """Every kind of refusal has the class that it has inside the server."""
    service = ScriptedService()
    async with connected(service) as client:
        await client.submit(PROMPTS, batch_id="taken")
        with pytest.raises(NotFound):
            await client.batch("none")
        with pytest.raises(Conflict):
            await client.submit(PROMPTS[:1], batch_id="taken")
        with pytest.raises(UnsupportedByEngine):
            await client.update_weights(version=1, path="x")
        service.failure = StoreError("full")
        with pytest.raises(StoreError):
            await client.batches()
        service.failure = RuntimeError("bug")
        with pytest.raises(ServerFailure) as failure:
            await client.batches()

    assert failure.value.status == 500
    assert failure.value.error_id


@pytest.mark.parametrize(
    ("prompts", "path"),
    [([], "prompts"), ([{"task": 3}], "prompts[0].task"), ([{"task": {}, "x": 1}], "prompts[0].x")],
)
async def test_wrong_prompts_are_refused_before_they_are_sent(
    prompts: list[dict[str, object]], path: str
) -> None:
    """The client names the field as the server would."""
    service = ScriptedService()
    async with connected(service) as client:
        with pytest.raises(InvalidRequest) as wrong:
            await client.submit(prompts)

    assert path == wrong.value.path
    assert service.known == {}


async def test_what_only_the_server_knows_is_refused_with_its_path() -> None:
    """An unknown environment comes back as ``InvalidRequest`` with the server's path."""
    async with connected(ScriptedService()) as client:
        with pytest.raises(InvalidRequest) as wrong:
            await client.submit(PROMPTS, environment="chess")

    assert wrong.value.path == "environment"


async def test_the_token_is_sent_and_its_absence_has_a_name() -> None:
    """With the token all is well; without it the failure says what is missing."""
    async with make_server(ScriptedService(), token="secret") as server:
        async with Client(server.url, "secret") as client:
            batches = await client.batches()
        async with Client(server.url) as stranger:
            with pytest.raises(Unauthorized):
                await stranger.batches()

    assert batches == []


async def test_the_rest_of_the_surface_is_there() -> None:
    """Cancelling, explaining, single trajectories, workers and dispatch."""
    service = ScriptedService()
    async with connected(service) as client:
        await client.submit(PROMPTS, batch_id="all")
        why = await client.explain("all-g1-t0")
        pending = await client.trajectory("all-g1-t0")
        cancelled = await client.cancel("all")
        record = await client.trajectory("all-g1-t0")
        added = await client.add_worker(tp_degree=2, slots=3)
        drained = await client.remove_worker("w0")
        workers = await client.workers()
        await client.pause()
        was_paused = service.paused
        await client.resume()

    assert (why.phase, why.queue_position) == ("queued", 1)
    assert pending is None
    assert cancelled.state == "cancelled"
    assert record is not None
    assert record.stop_reason == "cancelled"
    assert [drained, added] == workers
    assert (was_paused, service.paused) == (True, False)


@pytest.mark.parametrize("cut", [1, 2, 3, 7, 1000])
async def test_events_are_parsed_however_the_bytes_are_cut(cut: int) -> None:
    """Chunks end anywhere; comments, unknown fields and line separators in the text do no harm."""
    text = ': hi\n\nretry: 5\n\nid: 7\nevent: note\ndata: {"text":"a\u2028b\x85c"}\n\nid: 8\nevent: half\n'
    raw = text.encode()

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(raw), cut):
            yield raw[start : start + cut]

    events = [event async for event in parse_events(chunks())]

    assert [(e.event_id, e.name, e.data) for e in events] == [(7, "note", {"text": "a\u2028b\x85c"})]


def test_the_package_exports_both_clients() -> None:
    """``heddle.Client`` is the client, without being imported before it is asked for."""
    assert heddle.Client is Client
    assert {"Client", "SyncClient"} <= set(heddle.__all__)
    with pytest.raises(AttributeError):
        _ = heddle.Clientele
