"""The REST surface as an application, and the server that runs it."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from aiohttp import web
from pydantic import SecretStr

from heddle.api.batches import BatchRoutes
from heddle.api.context import DEFAULT_TIMING, ApiContext, ApiTiming
from heddle.api.events import EventRoutes
from heddle.api.guard import add_headers, make_guard
from heddle.api.idle import IdleConnections
from heddle.api.meta import MetaRoutes
from heddle.api.openapi import describe
from heddle.api.operations import OperationRoutes
from heddle.api.routing import Route
from heddle.api.service import RolloutService
from heddle.errors import ConfigError
from heddle.metrics import Metrics

CONNECTIONS = web.AppKey("connections", IdleConnections)

SWEEPS_PER_LIMIT = 5
"""Looks at the connections within the time for which an idle one is kept."""

MAX_URL_BYTES = 8190
"""Longest request line and header; ids, cursors and tokens fit many times."""


def make_app(
    service: RolloutService,
    *,
    token: SecretStr | None,
    max_body_bytes: int,
    metrics: Metrics,
    timing: ApiTiming = DEFAULT_TIMING,
) -> web.Application:
    """Build the application over ``service``; one application serves one service."""
    context = ApiContext(service, metrics, max_body_bytes, token=token, timing=timing)
    routes: tuple[Route, ...] = ()
    meta = MetaRoutes(context, lambda: describe(routes))
    routes = (
        *BatchRoutes(context).routes(),
        *EventRoutes(context).routes(),
        *OperationRoutes(context).routes(),
        *meta.routes(),
    )
    public = frozenset(route.path for route in routes if route.public)
    app = web.Application(middlewares=[make_guard(context, public)], client_max_size=max_body_bytes)
    app[CONNECTIONS] = context.connections
    for route in routes:
        app.router.add_route(route.method, route.path, route.handler)
    app.on_response_prepare.append(add_headers)

    async def begin_stop(_app: web.Application) -> None:
        context.stopping.set()

    async def end_mutations(_app: web.Application) -> None:
        await context.mutations.finish(timing.stop_s)

    app.on_shutdown.append(begin_stop)
    app.on_cleanup.append(end_mutations)
    return app


class ApiServer:
    """Serves one application until stopped; an async context manager, too.

    A handler is cancelled when its client goes (what changes state runs on, see ``Mutations``). ``stop``
    lets running requests end, long polls and event streams at once, and takes at most about twice
    ``timing.stop_s``.
    """

    def __init__(
        self, app: web.Application, *, host: str, port: int, timing: ApiTiming = DEFAULT_TIMING
    ) -> None:
        self._host = host
        self._wanted_port = port
        self._port: int | None = None
        self._connections = app[CONNECTIONS]
        self._sweeping: asyncio.Task[None] | None = None
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            handler_cancellation=True,
            shutdown_timeout=timing.stop_s,
            auto_decompress=False,
            lingering_time=min(timing.stop_s, 2.0),
            max_line_size=MAX_URL_BYTES,
            max_field_size=MAX_URL_BYTES,
        )

    @property
    def port(self) -> int:
        """The port that is bound; the real one where 0 was asked for."""
        if self._port is None:
            raise RuntimeError("the server is not started")
        return self._port

    @property
    def url(self) -> str:
        """Where a client on this machine finds the server."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}"

    async def start(self) -> None:
        """Bind and serve. Raises ``ConfigError`` where the address cannot be bound."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._wanted_port)
        try:
            await site.start()
        except OSError as exc:
            await self._runner.cleanup()
            raise ConfigError(f"cannot listen on {self._host}:{self._wanted_port}: {exc.strerror}") from exc
        self._port = int(self._runner.addresses[0][1])
        self._sweeping = asyncio.create_task(self._sweep(), name="idle connections")

    async def stop(self) -> None:
        """Stop accepting, let requests end, close what is left."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait({self._sweeping})
        await self._runner.cleanup()
        await asyncio.sleep(0)  # closed transports report to their protocols in the next turn of the loop

    async def _sweep(self) -> None:
        """Cut idle connections, until cancelled."""
        server = self._runner.server
        while server is not None:
            await asyncio.sleep(self._connections.idle_s / SWEEPS_PER_LIMIT)
            handlers = server.connections
            open_ones = [handler.transport for handler in handlers if handler.transport is not None]
            self._connections.close_idle(open_ones, asyncio.get_running_loop().time())

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
