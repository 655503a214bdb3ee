"""Requests that outlive a restart of the server.

Only failures of the connection are retried, and only for calls that may be repeated: reads, and
submissions (their batch id makes them idempotent). Pauses grow from ``first_s`` to ``longest_s``; after
``budget_s`` without an answer the last failure is raised.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
from pydantic import SecretStr

from heddle.client.errors import ServerFailure, raise_for
from heddle.errors import InvalidRequest

CONNECT_S = 10.0
WRITE_S = 60.0
READ_S = 60.0
"""Longest silence while an answer arrives; a long poll adds what it waits for."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long to go on when the server does not answer (seconds)."""

    first_s: float = 0.1
    longest_s: float = 3.0
    budget_s: float = 120.0


class Backoff:
    """Counts the time since the last success and paces the attempts."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._pause_s = policy.first_s
        self._failing_since: float | None = None

    def succeeded(self) -> None:
        """The server answered: the budget is whole again."""
        self._pause_s = self._policy.first_s
        self._failing_since = None

    async def failed(self, exc: httpx.TransportError) -> None:
        """Sleep before the next attempt. Raises ``ServerFailure`` where the budget is spent."""
        now = asyncio.get_running_loop().time()
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since + self._pause_s > self._policy.budget_s:
            raise ServerFailure(f"the server does not answer: {describe(exc)}") from exc
        await asyncio.sleep(self._pause_s * random.uniform(0.8, 1.2))
        self._pause_s = min(2 * self._pause_s, self._policy.longest_s)


class Transport:
    """One connection pool to one server."""

    def __init__(self, base_url: str, *, token: str | SecretStr | None, retry: RetryPolicy) -> None:
        """Raises ``InvalidRequest`` where an argument cannot be sent."""
        secret = token.get_secret_value() if isinstance(token, SecretStr) else token
        if secret and not (secret.isascii() and secret.isprintable()):
            raise InvalidRequest("may hold printable ASCII only", path="token")
        self._retry = retry
        self._http = httpx.AsyncClient(
            base_url=_server_url(base_url),
            headers={"Authorization": f"Bearer {secret}"} if secret else {},
            timeout=httpx.Timeout(READ_S, connect=CONNECT_S, write=WRITE_S),
            follow_redirects=False,
            # Loading the certificates takes longer than most calls; without TLS there is nothing to verify.
            verify=not base_url.startswith("http://"),
        )

    def backoff(self) -> Backoff:
        """A fresh count of failures."""
        return Backoff(self._retry)

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        content: bytes | None = None,
        accept: str = "application/json",
        wait_s: float = 0.0,
        repeat: bool = False,
    ) -> httpx.Response:
        """One answer, read whole; ``repeat`` says that the call may be made again.

        Raises what ``errors.raise_for`` says, and ``ServerFailure`` where there is no answer.
        """
        backoff = self.backoff()
        while True:
            try:
                response = await self._once(method, path, params, content, accept, wait_s)
            except httpx.TransportError as exc:
                if not repeat:
                    raise ServerFailure(f"{method} {path}: {describe(exc)}") from exc
                await backoff.failed(exc)
                continue
            if response.is_error:
                raise_for(response)
            return response

    async def _once(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        content: bytes | None,
        accept: str,
        wait_s: float,
    ) -> httpx.Response:
        headers = {"Accept": accept}
        if content is not None:
            headers["Content-Type"] = "application/json"
        timeout = httpx.Timeout(READ_S + wait_s, connect=CONNECT_S, write=WRITE_S)
        return await self._http.request(
            method, path, params=params, content=content, headers=headers, timeout=timeout
        )

    @asynccontextmanager
    async def stream(self, path: str, *, headers: Mapping[str, str]) -> AsyncIterator[httpx.Response]:
        """An answer that is read as it comes. Raises ``httpx.TransportError`` as it is."""
        async with self._http.stream("GET", path, headers=headers) as response:
            if response.is_error:
                await response.aread()
                raise_for(response)
            yield response

    async def close(self) -> None:
        """Release the connections."""
        await self._http.aclose()


def describe(exc: httpx.TransportError) -> str:
    """A sentence for a failure of the connection; some of httpx's have no text."""
    return str(exc) or type(exc).__name__


def _server_url(text: str) -> httpx.URL:
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as exc:
        raise InvalidRequest(f"{text!r} is no URL: {exc}", path="url") from exc
    if url.scheme not in ("http", "https") or not url.host:
        raise InvalidRequest(f"{text!r} is not of the form http://host:port", path="url")
    return url
