"""Long polls and event streams: they wake, time out, resume, and end with their client or the server."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import replace

import httpx
import orjson
import pytest
from rest_harness import IMPATIENT, QUICK, error_of, make_batch, make_server, serving, until
from scripted_service import ScriptedService

TRAJECTORIES = "/v1/batches/b0/trajectories"


async def test_pages_follow_one_another_by_their_cursor() -> None:
    """Two pages make the batch, in the order of finishing; the last one says so."""
    service = ScriptedService()
    async with serving(service) as http:
        await http.post("/v1/batches", json=make_batch(samples_per_prompt=3))
        service.finish("b0", 3)
        first = (await http.get(f"{TRAJECTORIES}?limit=2")).json()
        second = (await http.get(f"{TRAJECTORIES}?limit=2&after={first['cursor']}")).json()

    ids = [record["trajectory_id"] for page in (first, second) for record in page["trajectories"]]
    assert ids == ["b0-g0-t0", "b0-g0-t1", "b0-g0-t2"]
    assert [first["finished"], second["finished"]] == [False, True]


async def test_a_page_is_spliced_from_the_stored_bytes() -> None:
    """What the store holds is what arrives, byte for byte, in both formats."""
    service = ScriptedService()
    async with serving(service) as http:
        await http.post("/v1/batches", json=make_batch(samples_per_prompt=2))
        service.finish("b0", 2)
        page = await http.get(TRAJECTORIES)
        lines = await http.get(TRAJECTORIES, headers={"Accept": "application/x-ndjson"})

    first, second = service.known["b0"].records
    assert b'{"trajectories":[%b,%b],"cursor":"2","finished":true}' % (first, second) == page.content
    assert b"%b\n%b\n" % (first, second) == lines.content
    assert lines.headers["Content-Type"].partition(";")[0] == "application/x-ndjson"
    assert (lines.headers["X-Heddle-Cursor"], lines.headers["X-Heddle-Finished"]) == ("2", "true")


async def test_a_long_poll_wakes_when_something_finishes() -> None:
    """The answer comes with the trajectory, not with the end of the wait."""
    service = ScriptedService()
    async with serving(service) as http:
        await http.post("/v1/batches", json=make_batch(samples_per_prompt=2))
        polling = asyncio.create_task(http.get(f"{TRAJECTORIES}?wait=60"))
        await until(lambda: service.polls_open == 1)
        service.finish("b0")
        async with asyncio.timeout(5):
            page = (await polling).json()

    assert [record["trajectory_id"] for record in page["trajectories"]] == ["b0-g0-t0"]
    assert not page["finished"]


async def test_a_long_poll_ends_without_news_after_its_wait() -> None:
    """An empty page whose cursor goes on from the same place."""
    service = ScriptedService()
    async with serving(service) as http:
        await http.post("/v1/batches", json=make_batch(samples_per_prompt=2))
        service.finish("b0")
        page = (await http.get(f"{TRAJECTORIES}?wait=0.1&after=1")).json()

    assert page == {"trajectories": [], "cursor": "1", "finished": False}


async def test_the_wait_is_capped() -> None:
    """Nobody waits longer than the cap, whatever they ask for."""
    service = ScriptedService()
    async with serving(service, timing=replace(QUICK, max_wait_s=0.1)) as http:
        await http.post("/v1/batches", json=make_batch())
        async with asyncio.timeout(5):
            response = await http.get(f"{TRAJECTORIES}?wait=1e9")

    assert response.status_code == 200


async def test_a_long_poll_is_cancelled_when_its_client_goes() -> None:
    """A client that hangs up leaves nothing waiting in the service."""
    service = ScriptedService()
    async with serving(service) as http:
        await http.post("/v1/batches", json=make_batch())
        polling = asyncio.create_task(http.get(f"{TRAJECTORIES}?wait=60"))
        await until(lambda: service.polls_open == 1)
        polling.cancel()
        await until(lambda: service.polls_open == 0)

    assert service.polls_open == 0


async def test_a_submission_runs_to_its_end_when_its_client_goes() -> None:
    """What changes state is not left half done by a closed connection."""
    service = ScriptedService()
    gate = asyncio.Event()
    entered = asyncio.Event()

    async def hold() -> None:
        entered.set()
        await gate.wait()

    service.before_submit = hold
    async with serving(service) as http:
        submitting = asyncio.create_task(http.post("/v1/batches", json=make_batch(batch_id="kept")))
        await entered.wait()
        submitting.cancel()
        await asyncio.sleep(0.1)
        gate.set()
        await until(lambda: "kept" in service.known)

    assert service.submissions == 1


async def read_events(http: httpx.AsyncClient, count: int, **headers: str) -> list[tuple[str, str, object]]:
    """The next events of a fresh stream, as id, name and data."""
    found: list[tuple[str, str, object]] = []
    fields: dict[str, str] = {}
    async with asyncio.timeout(10), http.stream("GET", "/v1/events", headers=headers) as response:
        assert response.headers["Content-Type"].partition(";")[0] == "text/event-stream"
        async for line in response.aiter_lines():
            name, _, value = line.partition(": ")
            if line:
                fields[name] = value
            elif "data" in fields:
                found.append((fields["id"], fields["event"], orjson.loads(fields["data"])))
                fields = {}
                if len(found) == count:
                    return found
    return found


async def test_events_resume_after_the_last_one_seen() -> None:
    """``Last-Event-ID`` gives everything after it that is still there."""
    service = ScriptedService()
    for number in range(1, 5):
        service.emit("note", {"number": number})
    async with serving(service) as http:
        events = await read_events(http, 2, **{"Last-Event-ID": "2"})

    assert events == [("3", "note", {"number": 3}), ("4", "note", {"number": 4})]


async def test_a_gap_in_the_buffer_is_told() -> None:
    """Who was away too long learns that something is missing."""
    service = ScriptedService(event_buffer=2)
    for number in range(1, 6):
        service.emit("note", {"number": number})
    async with serving(service) as http:
        events = await read_events(http, 3, **{"Last-Event-ID": "1"})

    assert events == [("3", "gap", {"missed": 2}), ("4", "note", {"number": 4}), ("5", "note", {"number": 5})]


async def test_a_silent_stream_has_a_heartbeat() -> None:
    """Comments keep proxies and clients from thinking the stream dead."""
    async with serving(ScriptedService()) as http, http.stream("GET", "/v1/events") as response:
        async with asyncio.timeout(5):
            async for line in response.aiter_lines():
                if line == ": heartbeat":
                    break

    assert line == ": heartbeat"


@pytest.mark.parametrize(
    ("query", "header", "path"),
    [
        ("after=x", None, "query.after"),
        ("after=-1", None, "query.after"),
        ("", "abc", "header.Last-Event-ID"),
    ],
)
async def test_a_bad_event_id_is_refused(query: str, header: str | None, path: str) -> None:
    """Ids of events are numbers."""
    headers = {"Last-Event-ID": header} if header else {}
    async with serving(ScriptedService()) as http:
        response = await http.get(f"/v1/events?{query}", headers=headers)

    assert (400, "invalid_value", path) == error_of(response)


async def test_a_stream_ends_in_the_service_when_its_client_goes() -> None:
    """The service's iterator is closed, so that nothing collects events for nobody."""
    service = ScriptedService()
    async with serving(service) as http:
        async with http.stream("GET", "/v1/events"):
            await until(lambda: service.streams_open == 1)
        await until(lambda: service.streams_open == 0)

    assert service.streams_open == 0


async def test_a_client_that_does_not_read_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    """A stuck consumer is cut off after a while, and meanwhile nothing is buffered for it."""
    service = ScriptedService(event_buffer=10_000)
    async with serving(service, timing=IMPATIENT) as http:
        reader, writer = await asyncio.open_connection(http.base_url.host, http.base_url.port)
        writer.write(b"GET /v1/events?after=0 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await until(lambda: service.streams_open == 1)
        for number in range(200):
            service.emit("flood", {"number": number, "text": "x" * 100_000})
        await until(lambda: service.streams_open == 0)
        received = 0
        with contextlib.suppress(ConnectionError):
            while piece := await reader.read(1 << 20):
                received += len(piece)
        writer.close()

    assert received < 200 * 100_000
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


async def test_a_client_that_stops_reading_a_large_answer_is_dropped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A page of many megabytes does not wait for a reader that never comes back."""
    service = ScriptedService()
    async with serving(service, timing=IMPATIENT) as http:
        await http.post("/v1/batches", json=make_batch(samples_per_prompt=8))
        service.finish("b0", 8, reward_info={"blob": "x" * 4_000_000})
        reader, writer = await asyncio.open_connection(http.base_url.host, http.base_url.port)
        writer.write(f"GET {TRAJECTORIES} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())

        async def counted() -> bool:
            text = (await http.get("/metrics")).text
            return 'code="499"' in text

        async with asyncio.timeout(10):
            while not await counted():
                await asyncio.sleep(0.05)
        received = 0
        with contextlib.suppress(ConnectionError):
            while piece := await reader.read(1 << 20):
                received += len(piece)
        writer.close()

    assert 0 < received < 32_000_000
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


async def test_the_server_stops_at_once_with_polls_and_streams_open() -> None:
    """A long poll is answered with what there is, a stream ends, and nobody waits for a minute."""
    service = ScriptedService()
    server = make_server(service, timing=replace(QUICK, max_wait_s=60.0, heartbeat_s=60.0, stop_s=10.0))
    await server.start()
    async with httpx.AsyncClient(base_url=server.url, timeout=30, trust_env=False, verify=False) as http:
        await http.post("/v1/batches", json=make_batch())
        polling = asyncio.create_task(http.get(f"{TRAJECTORIES}?wait=60"))
        listening = asyncio.create_task(http.get("/v1/events"))
        await until(lambda: service.polls_open == 1 and service.streams_open == 1)
        started = time.monotonic()
        await server.stop()
        took_s = time.monotonic() - started
        page, stream = await polling, await listening

    assert page.json() == {"trajectories": [], "cursor": "0", "finished": False}
    assert stream.text.startswith("retry: ")
    assert (service.polls_open, service.streams_open) == (0, 0)
    assert took_s < 8


async def test_a_handler_that_hangs_does_not_hold_the_stop() -> None:
    """After ``stop_s`` a running request is cancelled."""
    service = ScriptedService()
    service.before_submit = asyncio.Event().wait  # never set
    server = make_server(service, timing=replace(QUICK, stop_s=0.2))
    await server.start()
    async with httpx.AsyncClient(base_url=server.url, timeout=30, trust_env=False, verify=False) as http:
        submitting = asyncio.create_task(http.post("/v1/batches", json=make_batch()))
        await asyncio.sleep(0.2)
        async with asyncio.timeout(10):
            await server.stop()
        with pytest.raises(httpx.TransportError):
            await submitting

    assert service.known == {}
