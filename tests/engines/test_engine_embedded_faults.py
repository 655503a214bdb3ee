"""The adapter against servers that misbehave: every failure is typed, and every wait ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx
import orjson
import pytest
from engine_builders import ignore, make_request

from heddle.engines.embedded.adapter import EmbeddedEngine
from heddle.errors import EngineError, EngineRejected, EngineTimeout, EngineUnavailable
from heddle.types import FinishReason

OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
IDLE = b'[{"id": 0, "n_ctx": 64, "is_processing": false}]'

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


def token_event(token_id: int, predicted: int) -> bytes:
    """One sampled token on the wire."""
    probability = {"id": token_id, "logprob": -0.5}
    event = {"tokens": [token_id], "tokens_predicted": predicted, "completion_probabilities": [probability]}
    return b"data: " + orjson.dumps(event) + b"\n\n"


def end_event(predicted: int) -> bytes:
    """The regular end of a generation on the wire."""
    event = {"stop": True, "stop_type": "eos", "tokens_predicted": predicted}
    return b"data: " + orjson.dumps({**event, "timings": {"cache_n": 2, "prompt_n": 1}}) + b"\n\n"


def says(*parts: bytes) -> Answer:
    """Send these bytes and hang up."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.writelines(parts)
        await writer.drain()

    return answer


def trickles(prefix: bytes, drop: bytes) -> Answer:
    """Send a beginning, then a drop every few milliseconds for ever."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(prefix)
        while True:
            writer.write(drop)
            await writer.drain()
            await asyncio.sleep(0.005)

    return answer


@asynccontextmanager
async def engine_against(answer: Answer) -> AsyncIterator[EmbeddedEngine]:
    """An engine whose server answers completions so, and shows idle slots."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"GET /slots"):
                writer.write(OK + IDLE)
            else:
                await answer(writer)
            await writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            return
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    engine = EmbeddedEngine(f"http://127.0.0.1:{port}", slots=2)
    try:
        yield engine
    finally:
        await engine.close()
        server.close()


async def test_a_regular_stream_is_a_generation() -> None:
    """The fake server of this file is close enough to the real one to prove the failures below."""
    async with engine_against(says(OK, token_event(7, 1), token_event(2, 2), end_event(2))) as engine:
        generation = await engine.generate(make_request(), ignore)
    assert (generation.token_ids, generation.logprobs) == ([7, 2], [-0.5, -0.5])
    assert (generation.finish_reason, generation.cached_tokens) == (FinishReason.STOP, 2)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(says(b"SMTP ready\r\n"), EngineUnavailable, id="not-http"),
        pytest.param(says(), EngineUnavailable, id="hangs-up"),
        pytest.param(says(OK), EngineUnavailable, id="empty-stream"),
        pytest.param(says(OK, token_event(7, 1)), EngineUnavailable, id="truncated"),
        pytest.param(says(OK, b"data: {oops\n\n"), EngineUnavailable, id="bad-json"),
        pytest.param(says(OK, b"<html></html>\n"), EngineUnavailable, id="html"),
        pytest.param(says(OK, b"y" * 1_000_000), EngineUnavailable, id="endless-line"),
        pytest.param(says(OK, token_event(7, 3)), EngineUnavailable, id="withheld-tokens"),
        pytest.param(
            says(b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy"), EngineUnavailable, id="503"
        ),
        pytest.param(
            says(b'HTTP/1.1 400 Bad\r\nConnection: close\r\n\r\n{"error":{"code":400,"message":"too long"}}'),
            EngineRejected,
            id="400",
        ),
        pytest.param(
            says(OK, b'data: {"error":{"code":500,"message":"boom"}}\n\n'),
            EngineUnavailable,
            id="error-event",
        ),
    ],
)
async def test_a_failing_server_gives_a_typed_error(answer: Answer, expected: type[EngineError]) -> None:
    """Whatever comes back, it is one of the errors that the protocol names."""
    async with engine_against(answer) as engine:
        with pytest.raises(expected):
            await engine.generate(make_request(), ignore)


async def test_a_refused_connection_is_an_unavailable_engine() -> None:
    """For generations, health and load alike."""
    engine = EmbeddedEngine("http://127.0.0.1:9", slots=1)
    for call in (engine.generate(make_request(), ignore), engine.health(), engine.load()):
        with pytest.raises(EngineUnavailable):
            await call
    await engine.close()


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(trickles(OK, b"x"), id="one-line-without-end"),
        pytest.param(trickles(OK, b": ping\n\n"), id="comments"),
        pytest.param(trickles(OK, b'data: {"prompt_progress":{"cache":0}}\n\n'), id="progress"),
        pytest.param(trickles(b"HTTP/1.1 200 OK\r\nX: ", b"y"), id="headers"),
        pytest.param(trickles(OK + token_event(7, 1), b": ping\n\n"), id="after-a-token"),
    ],
)
async def test_a_trickle_does_not_move_the_token_deadline(answer: Answer) -> None:
    """Only tokens do; bytes keep nothing alive."""
    async with engine_against(answer) as engine:
        with pytest.raises(EngineTimeout, match="no token"):
            await engine.generate(make_request(first_token_deadline_s=0.2), ignore)


async def test_tokens_do_not_move_the_deadline_of_the_whole() -> None:
    """A stream that never ends is ended."""

    async def counts(writer: asyncio.StreamWriter) -> None:
        writer.write(OK)
        for predicted in range(1, 100_000):
            writer.write(token_event(7, predicted))
            await writer.drain()
            await asyncio.sleep(0.005)

    async with engine_against(counts) as engine:
        with pytest.raises(EngineTimeout, match="not done"):
            await engine.generate(make_request(deadline_s=0.2), ignore)


async def test_a_silent_server_can_be_aborted_and_cancelled() -> None:
    """Neither waits for a token that never comes."""
    started = asyncio.Event()

    async def silent(writer: asyncio.StreamWriter) -> None:
        writer.write(OK + token_event(7, 1))
        await writer.drain()
        started.set()
        await asyncio.sleep(3600)

    async with engine_against(silent) as engine:
        aborted = asyncio.create_task(engine.generate(make_request(), ignore))
        await started.wait()
        await asyncio.sleep(0.05)
        await engine.abort("r1")
        generation = await aborted
        assert (generation.token_ids, generation.finish_reason) == ([7], FinishReason.ABORT)
        started.clear()
        cancelled = asyncio.create_task(engine.generate(make_request(), ignore))
        await started.wait()
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled


async def test_an_abort_of_what_is_ending_already_waits_for_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing the stream takes a moment; whoever aborts or closes meanwhile must not fail."""
    unwinding, may_end = asyncio.Event(), asyncio.Event()
    close = httpx.Response.aclose

    async def close_slowly(response: httpx.Response) -> None:
        unwinding.set()
        await may_end.wait()
        await close(response)

    async with engine_against(trickles(OK + token_event(7, 1), b": ping\n\n")) as engine:
        task = asyncio.create_task(engine.generate(make_request(), ignore))
        await asyncio.sleep(0.05)
        monkeypatch.setattr(httpx.Response, "aclose", close_slowly)
        first = asyncio.create_task(engine.abort("r1"))
        await unwinding.wait()
        second = asyncio.create_task(engine.abort("r1"))
        await asyncio.sleep(0.01)
        may_end.set()
        await asyncio.gather(first, second)

    assert (await task).finish_reason is FinishReason.ABORT


async def test_closing_ends_what_runs() -> None:
    """A generation in flight raises, and so does everything afterwards."""
    async with engine_against(trickles(OK + token_event(7, 1), b": ping\n\n")) as engine:
        task = asyncio.create_task(engine.generate(make_request(), ignore))
        await asyncio.sleep(0.05)
        await engine.close()
        with pytest.raises(EngineUnavailable, match="was closed"):
            await task
        with pytest.raises(EngineUnavailable, match="is closed"):
            await engine.health()


async def test_requests_beyond_the_slots_wait_here_and_can_be_aborted() -> None:
    """The third of two never reaches the server, and is aborted without it."""
    reached = 0

    async def silent(writer: asyncio.StreamWriter) -> None:
        nonlocal reached
        reached += 1
        writer.write(OK)
        await writer.drain()
        await asyncio.sleep(3600)

    async with engine_against(silent) as engine:
        tasks = [asyncio.create_task(engine.generate(make_request(f"r{i}"), ignore)) for i in range(3)]
        await asyncio.sleep(0.1)
        await engine.abort("r2")
        assert (await tasks[2]).finish_reason is FinishReason.ABORT
        assert reached == 2
        await asyncio.gather(engine.abort("r0"), engine.abort("r1"))
        await asyncio.gather(*tasks)


async def test_requests_that_cannot_be_meant_are_rejected_unsent() -> None:
    """No room for a token, and an id that is in flight already."""
    async with engine_against(trickles(OK, b": ping\n\n")) as engine:
        with pytest.raises(EngineRejected, match="max_new_tokens"):
            await engine.generate(make_request(max_new_tokens=0), ignore)
        task = asyncio.create_task(engine.generate(make_request(), ignore))
        await asyncio.sleep(0.01)
        with pytest.raises(EngineRejected, match="in flight"):
            await engine.generate(make_request(), ignore)
        await engine.abort("r1")
        await task
