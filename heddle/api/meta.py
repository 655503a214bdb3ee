"""Health, metrics, the description of the surface, and the dashboard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files

from aiohttp import web

from heddle.api.context import ApiContext
from heddle.api.problems import Problem
from heddle.api.replies import reply_bytes, reply_json
from heddle.api.routing import Answer, Route
from heddle.metrics import CONTENT_TYPE

ASSETS = {
    "/": ("dashboard.html", "text/html"),
    "/static/dashboard.css": ("dashboard.css", "text/css"),
    "/static/dashboard.js": ("dashboard.js", "text/javascript"),
    "/static/dom.js": ("dom.js", "text/javascript"),
    "/static/transcript.js": ("transcript.js", "text/javascript"),
}
"""The dashboard's files. They hold no data, so they need no token; the page asks for it."""


@dataclass(frozen=True, slots=True)
class HealthBody:
    """``ok`` or ``ready``."""

    status: str


class MetaRoutes:
    """Handlers about the server itself."""

    def __init__(self, context: ApiContext, describe: Callable[[], bytes]) -> None:
        """``describe`` makes what ``/openapi.json`` answers, once the table of routes is complete."""
        self._context = context
        self._timing = context.timing
        self._describe = describe
        self._document: bytes | None = None

    def routes(self) -> tuple[Route, ...]:
        """The operations on the server itself, the dashboard's files included."""
        own = (
            Route(
                "GET", "/healthz", self.healthz, "Whether the server answers.",
                {200: Answer("It does.", HealthBody)}, "server", public=True,
            ),
            Route(
                "GET", "/readyz", self.readyz, "Whether a worker can generate.",
                {200: Answer("One can.", HealthBody)}, "server", errors=(503,), public=True,
            ),
            Route(
                "GET", "/metrics", self.metrics, "Metrics for Prometheus.",
                {200: Answer("The metrics.", None, ("text/plain",))}, "server",
            ),
            Route(
                "GET", "/openapi.json", self.openapi, "This description.",
                {200: Answer("OpenAPI 3.1.", None, ("application/json",))}, "server",
            ),
        )  # fmt: skip
        return own + tuple(_asset_route(path, *asset) for path, asset in ASSETS.items())

    async def healthz(self, request: web.Request) -> web.StreamResponse:
        return await reply_json(request, HealthBody("ok"), self._timing)

    async def readyz(self, request: web.Request) -> web.StreamResponse:
        try:
            async with asyncio.timeout(self._timing.ready_s):
                ready = await self._context.service.ready()
        except TimeoutError:
            ready = False
        if not ready or self._context.stopping.is_set():
            raise Problem(503, "not_ready", "no worker can generate yet", headers={"Retry-After": "1"})
        return await reply_json(request, HealthBody("ready"), self._timing)

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        body = self._context.metrics.render()
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    async def openapi(self, request: web.Request) -> web.StreamResponse:
        if self._document is None:
            self._document = await asyncio.to_thread(self._describe)
        return await reply_bytes(request, [self._document], self._timing)


def _asset_route(path: str, name: str, content_type: str) -> Route:
    body = files("heddle.api").joinpath("static", name).read_bytes()

    async def serve(_request: web.Request) -> web.StreamResponse:
        return web.Response(body=body, content_type=content_type, charset="utf-8")

    answer = Answer("The file.", None, (content_type,))
    return Route("GET", path, serve, f"The dashboard: {name}.", {200: answer}, "dashboard", public=True)
