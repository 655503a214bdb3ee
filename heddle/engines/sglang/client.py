"""HTTP to one SGLang server: two bounded pools, typed errors, and no timeout but the caller's deadlines.

Control requests have connections of their own, so that an abort never waits behind the generations that it
is to end. The server closes an idle connection when it likes, possibly just as it is used again; on
loopback a new one costs nothing, so none is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import aiohttp
import orjson

from heddle.engines.sglang.protocol import error_of_status
from heddle.errors import EngineError, EngineInterrupted, EngineUnavailable

CONNECT_TIMEOUT_S = 10.0
CONTROL_TIMEOUT_S = 15.0
CONTROL_CONNECTIONS = 16
_ERROR_BODY_BYTES = 65_536


class SGLangClient:
    """``streams`` is how many generations may have a connection at once; others wait for one.

    Make it on the event loop that uses it. Every call raises ``EngineError`` subclasses only.
    """

    def __init__(self, url: str, *, streams: int, api_key: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._streams = self._session(streams)
        self._control = self._session(CONTROL_CONNECTIONS)

    def _session(self, connections: int) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            headers={**self._headers, "Content-Type": "application/json"},
            connector=aiohttp.TCPConnector(limit=connections, force_close=True),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
            raise_for_status=False,
        )

    async def get(self, *paths: str, timeout_s: float = CONTROL_TIMEOUT_S) -> bytes:
        """The body of a 200 from the first path that the server knows; older ones have other names.

        Any other answer, or none in time, raises.
        """
        for path in paths:
            status, body = await self._request("GET", path, None, timeout_s)
            if status == HTTPStatus.OK:
                return body
            if status != HTTPStatus.NOT_FOUND or path == paths[-1]:
                raise _control_error(status, body)
        raise AssertionError("get() needs a path")

    async def post(self, path: str, body: dict[str, Any], *, timeout_s: float = CONTROL_TIMEOUT_S) -> bytes:
        """The body of a 200. Raises ``EngineRejected`` for a status that blames the request."""
        status, answer = await self._request("POST", path, orjson.dumps(body), timeout_s)
        if status != HTTPStatus.OK:
            raise _control_error(status, answer)
        return answer

    async def post_if_known(
        self, path: str, body: Mapping[str, Any], *, timeout_s: float = CONTROL_TIMEOUT_S
    ) -> bool:
        """As ``post``, but False where the server has no such path: older ones do without."""
        status, answer = await self._request("POST", path, orjson.dumps(body), timeout_s)
        if status not in (HTTPStatus.OK, HTTPStatus.NOT_FOUND):
            raise _control_error(status, answer)
        return status == HTTPStatus.OK

    @asynccontextmanager
    async def stream(self, path: str, body: dict[str, Any]) -> AsyncIterator[aiohttp.StreamReader]:
        """The bytes of an answer as they come, for as long as it takes."""
        self._raise_if_closed()
        data = orjson.dumps(body)
        async with _translated(path, None), self._streams.post(self.url + path, data=data) as response:
            if response.status != HTTPStatus.OK:
                raise error_of_status(response.status, await response.content.read(_ERROR_BODY_BYTES))
            yield response.content

    async def close(self) -> None:
        """Close every connection; requests that run raise ``EngineUnavailable``."""
        await self._streams.close()
        await self._control.close()

    def _raise_if_closed(self) -> None:
        if self._control.closed:
            raise EngineUnavailable("the engine is closed")

    async def _request(
        self, method: str, path: str, data: bytes | None, timeout_s: float
    ) -> tuple[int, bytes]:
        self._raise_if_closed()
        async with (
            _translated(path, timeout_s),
            self._control.request(method, self.url + path, data=data) as response,
        ):
            return response.status, await response.read()


def _control_error(status: int, body: bytes) -> EngineError:
    """No control request is ever interrupted in favour of another."""
    error = error_of_status(status, body)
    return EngineUnavailable(str(error)) if isinstance(error, EngineInterrupted) else error


@asynccontextmanager
async def _translated(path: str, timeout_s: float | None) -> AsyncIterator[None]:
    """A deadline, and the transport's errors as ours: nothing says what the engine computed."""
    deadline = asyncio.timeout(timeout_s)
    try:
        async with deadline:
            yield
    except TimeoutError as exc:
        if not deadline.expired():
            raise EngineUnavailable(f"cannot connect within {CONNECT_TIMEOUT_S:g} s") from exc
        raise EngineUnavailable(f"no answer to {path} within {timeout_s:g} s") from exc
    except (aiohttp.ClientError, ConnectionError) as exc:
        raise EngineUnavailable(f"{type(exc).__name__}: {exc}" if str(exc) else type(exc).__name__) from exc
