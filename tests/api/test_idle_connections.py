"""Connections that nobody uses are closed; those that wait for something are not."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from rest_harness import QUICK, make_batch, serving
from scripted_service import ScriptedService

IMPATIENT = replace(QUICK, idle_s=0.3)
HEAD = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"


async def read_to_the_end(reader: asyncio.StreamReader) -> bytes:
    """What comes until the server closes; one that does not fails the test."""
    async with asyncio.timeout(20):
        try:
            return await reader.read(-1)
        except ConnectionResetError:
            return b""


@pytest.mark.parametrize("sent", [b"", b"GET", HEAD, HEAD + b"X-Slow: "])
async def test_a_head_that_never_ends_is_given_up(sent: bytes) -> None:
    """Whatever of it has come."""
    async with serving(ScriptedService(), timing=IMPATIENT) as http:
        reader, writer = await asyncio.open_connection(http.base_url.host, http.base_url.port)
        writer.write(sent)
        assert await read_to_the_end(reader) == b""
        writer.close()


async def test_a_head_that_trickles_is_given_up() -> None:
    """Bytes keep nothing alive."""
    async with serving(ScriptedService(), timing=IMPATIENT) as http:
        reader, writer = await asyncio.open_connection(http.base_url.host, http.base_url.port)
        writer.write(HEAD + b"X-Slow: ")

        async def trickle() -> None:
            while True:
                writer.write(b"a")
                await asyncio.sleep(0.02)

        trickling = asyncio.create_task(trickle())
        assert await read_to_the_end(reader) == b""
        trickling.cancel()
        writer.close()


async def test_a_connection_is_closed_some_time_after_its_last_request() -> None:
    """Also where the next head has begun."""
    async with serving(ScriptedService(), timing=IMPATIENT) as http:
        reader, writer = await asyncio.open_connection(http.base_url.host, http.base_url.port)
        writer.write(HEAD + b"\r\n" + HEAD)
        assert (await read_to_the_end(reader)).startswith(b"HTTP/1.1 200 OK\r\n")
        writer.close()


async def test_a_long_poll_is_not_idle() -> None:
    """It waits for longer than an idle connection would be kept."""
    service = ScriptedService()
    async with serving(service, timing=IMPATIENT) as http:
        await http.post("/v1/batches", json=make_batch())
        page = await http.get("/v1/batches/b0/trajectories", params={"wait": "1.2"})
    assert page.status_code == 200
    assert page.json()["trajectories"] == []
