"""How the tests of the REST surface get a server and talk to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
from pydantic import SecretStr
from scripted_service import ScriptedService

from heddle.api.app import ApiServer, make_app
from heddle.api.context import ApiTiming
from heddle.metrics import Metrics
from heddle.types import Json

QUICK = ApiTiming(max_wait_s=5.0, heartbeat_s=0.05, stop_s=1.0)
"""Short where a test waits for it, and as long as ever where a busy machine must not be mistaken."""

IMPATIENT = replace(QUICK, body_idle_s=0.3, body_total_s=1.5, write_s=0.5)
"""For the tests in which the client is the slow one."""

MAX_BODY = 100_000


def make_server(
    service: ScriptedService,
    *,
    token: str | None = None,
    timing: ApiTiming = QUICK,
    max_body_bytes: int = MAX_BODY,
    port: int = 0,
) -> ApiServer:
    """A server that is not started yet."""
    secret = SecretStr(token) if token is not None else None
    app = make_app(service, token=secret, max_body_bytes=max_body_bytes, metrics=Metrics(), timing=timing)
    return ApiServer(app, host="127.0.0.1", port=port, timing=timing)


@asynccontextmanager
async def serving(
    service: ScriptedService,
    *,
    token: str | None = None,
    timing: ApiTiming = QUICK,
    max_body_bytes: int = MAX_BODY,
) -> AsyncIterator[httpx.AsyncClient]:
    """A running server, as the HTTP client that talks to it."""
    server = make_server(service, token=token, timing=timing, max_body_bytes=max_body_bytes)
    async with (
        server,
        httpx.AsyncClient(base_url=server.url, timeout=20, trust_env=False, verify=False) as http,
    ):
        yield http


def make_batch(*, prompts: int = 1, **fields: Json) -> dict[str, Any]:
    """The body of a valid submission."""
    return {"prompts": [{"task": {"question": f"{i} + {i}?"}} for i in range(prompts)], **fields}


def body_of(response: httpx.Response, *names: str) -> tuple[Any, ...]:
    """Some fields of a JSON answer."""
    body = response.json()
    return tuple(body[name] for name in names)


def error_of(response: httpx.Response) -> tuple[int, str, str | None]:
    """Status, code and path of an error, which must be JSON."""
    error = response.json()["error"]
    return response.status_code, error["code"], error["path"]


async def raw_exchange(http: httpx.AsyncClient, *pieces: bytes, pause_s: float = 0.0) -> bytes:
    """Send bytes as they are over a socket of their own and read until the server closes."""
    reader, writer = await asyncio.open_connection(http.base_url.host, http.base_url.port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause_s)
        async with asyncio.timeout(10):
            return await reader.read(65_536)
    finally:
        writer.close()


async def until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.01)


def run_with_server(
    service: ScriptedService, exchange: Callable[[httpx.AsyncClient], Awaitable[httpx.Response]]
) -> httpx.Response:
    """For tests that are not coroutines: one exchange with a server of its own."""

    async def run() -> httpx.Response:
        async with serving(service) as http:
            return await exchange(http)

    return asyncio.run(run())
