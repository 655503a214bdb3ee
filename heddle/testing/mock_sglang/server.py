"""``MockSGLang``: HTTP of a mock, in this process on a port of its own."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any

from aiohttp import web

from heddle.testing.mock_sglang.bodies import BadBody, BadRequest, check_contract
from heddle.testing.mock_sglang.cache import PrefixCache
from heddle.testing.mock_sglang.controls import Controls, read_json
from heddle.testing.mock_sglang.faults import MockFaults
from heddle.testing.mock_sglang.frontend import Frontend
from heddle.testing.mock_sglang.model import MockModel
from heddle.testing.mock_sglang.reports import loads, metrics, model_info, server_info
from heddle.testing.mock_sglang.requests import Asked
from heddle.testing.mock_sglang.scheduler import MockScheduler
from heddle.testing.mock_sglang.settings import MockSettings

MAX_BODY_BYTES = 1 << 26
REMEMBERED_BODIES = 10_000
DEFAULTS = MockSettings()
_DONE = b"data: [DONE]\n\n"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class MockSGLang:
    """Use as ``async with MockSGLang() as mock: ... mock.url``; also ``start`` and ``stop``.

    ``faults`` may be set at any time. ``crash`` ends it as a killed process would.
    """

    def __init__(self, settings: MockSettings = DEFAULTS, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self.settings = settings
        self.crashed = asyncio.Event()
        self.crash_reason: str | None = None
        self.generate_bodies: deque[dict[str, Any]] = deque(maxlen=REMEMBERED_BODIES)
        """The latest bodies of ``POST /generate``, in the order of their arrival."""
        self._address = (host, port)
        self._model = MockModel(
            vocabulary=settings.vocabulary,
            end_id=settings.end_id,
            mean_tokens=settings.mean_tokens,
            seed=settings.seed,
        )
        self._model.load(settings.model_path)
        self.cache = PrefixCache(
            capacity=settings.max_total_tokens,
            page_size=settings.page_size,
            host_tokens=settings.host_tokens,
            store=settings.store,
        )
        self._frontend = Frontend(settings, self._model)
        self.scheduler = MockScheduler(
            settings,
            self._model,
            self.cache,
            weight_version=lambda: self._frontend.weight_version,
            crash=self.crash,
        )
        self._frontend.attach(self.scheduler)
        self._controls = Controls(settings, self._frontend, self.scheduler, self.cache)
        self._draining = False
        self._transports: set[asyncio.BaseTransport] = set()
        self._late_aborts: set[asyncio.TimerHandle] = set()
        self._stack = AsyncExitStack()
        self.url = ""

    # -------------------------------------------------------------------------------------- life

    @property
    def faults(self) -> MockFaults:
        """What goes wrong."""
        return self.scheduler.faults

    @faults.setter
    def faults(self, faults: MockFaults) -> None:
        self.scheduler.faults = faults

    async def start(self) -> None:
        """Listen; ``url`` says where."""
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self._guard])
        app.add_routes(self._routes())
        runner = web.AppRunner(app, shutdown_timeout=1.0, handler_cancellation=True, access_log=None)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, *self._address)
        await site.start()
        scheduling = asyncio.create_task(self.scheduler.run(), name="mock scheduler")
        self._stack.push_async_callback(_cancelled, scheduling)
        host, port = runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"

    async def stop(self, *, graceful: bool = False) -> None:
        """End; ``graceful`` waits without a deadline for requests in flight, as SIGTERM does."""
        if graceful:
            self._draining = True
            await self._frontend.drained()
        else:
            self._cut_connections()
        for handle in self._late_aborts:
            handle.cancel()
        await self._stack.aclose()

    def crash(self, reason: str = "crashed") -> None:
        """End as a killed process does: connections break in the middle, new ones are refused."""
        if self.crash_reason is None:
            self.crash_reason = reason
            self.crashed.set()
            self._cut_connections()

    async def __aenter__(self) -> MockSGLang:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def _cut_connections(self) -> None:
        for transport in self._transports:
            if isinstance(transport, asyncio.WriteTransport):
                transport.abort()

    # -------------------------------------------------------------------------------------- HTTP

    def _routes(self) -> list[web.RouteDef]:
        get, post = web.get, web.post
        return [
            post("/generate", self._generate),
            post("/abort_request", self._abort),
            get("/ready", self._ready),
            get("/health", self._health),
            get("/health_generate", self._health),
            *(get(path, self._model_info) for path in ("/model_info", "/get_model_info")),
            *(get(path, self._server_info) for path in ("/server_info", "/get_server_info")),
            get("/v1/loads", self._loads),
            get("/metrics", self._metrics),
            *self._controls.routes(),
        ]

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        transport = request.transport
        if self.crash_reason is not None or transport is None:
            if isinstance(transport, asyncio.WriteTransport):
                transport.abort()
            raise web.HTTPServiceUnavailable
        key = self.settings.api_key
        if key is not None and request.headers.get("Authorization") != f"Bearer {key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        self._transports.add(transport)
        try:
            return await handler(request)
        finally:
            self._transports.discard(transport)

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await read_json(request)
        self.generate_bodies.append(body)
        if self.faults.refuse_with is not None:
            return _error("refused by order of the test", self.faults.refuse_with)
        try:
            check_contract(body)
        except BadBody as exc:
            return web.json_response({"error": str(exc)}, status=400)
        if any(not 0 <= token_id < self.settings.vocabulary for token_id in body.get("input_ids") or ()):
            self.crash("a token id beyond the vocabulary")
        if body.get("stream"):
            return await self._stream(request, body)
        try:
            asked = self._frontend.accept(body)
        except BadRequest as exc:
            return _error(str(exc), 400)
        [reply] = [event async for event in self._frontend.run(asked)]
        finish = reply["meta_info"]["finish_reason"]
        status = finish.get("status_code")
        if status is None:
            return web.json_response(reply)
        return web.json_response({"detail": finish["message"]}, status=status)

    async def _stream(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        try:
            asked = self._frontend.accept(body)
        except BadRequest as exc:
            error = {"message": str(exc), "type": "invalid_request_error", "code": 400, "retryable": False}
            await response.write(_sse({"error": error}))
        else:
            await self._send_events(request, response, asked)
            self._abort_late(asked.rid)
        await response.write(_DONE)
        await response.write_eof()
        return response

    async def _send_events(self, request: web.Request, response: web.StreamResponse, asked: Asked) -> None:
        faults = self.faults
        sent = 0
        async for event in self._frontend.run(asked):
            count = event["meta_info"]["completion_tokens"]
            if faults.lose_token is not None and sent <= faults.lose_token < count:
                del event["output_ids"][faults.lose_token - count]
            if faults.disconnect_after_tokens is not None and count >= faults.disconnect_after_tokens:
                assert request.transport is not None
                request.transport.abort()
            await response.write(_sse(event))
            sent = count

    def _abort_late(self, rid: str) -> None:
        """A server guards against clients that left, and does not look whose the id is by then."""

        def abort() -> None:
            self._late_aborts.discard(handle)
            self._frontend.abort(rid)

        handle = asyncio.get_running_loop().call_later(self.settings.disconnect_grace_s, abort)
        self._late_aborts.add(handle)

    async def _abort(self, request: web.Request) -> web.Response:
        body = await read_json(request)
        self._frontend.abort(body.get("rid") or "", everything=bool(body.get("abort_all")))
        return web.Response()

    async def _ready(self, request: web.Request) -> web.Response:
        return web.Response(status=503 if self._frontend.paused or self._draining else 200)

    async def _health(self, request: web.Request) -> web.Response:
        """A probe that needs a step of the scheduler, looked at once a second."""
        if self._draining:
            return web.Response(status=503)
        waited = 0.0
        while waited < self.settings.health_timeout_s:
            await asyncio.sleep(self.settings.health_s)
            waited += self.settings.health_s
            if self.scheduler.responsive:
                return web.Response()
        return web.Response(status=503)

    async def _model_info(self, request: web.Request) -> web.Response:
        return web.json_response(model_info(self.settings, self._frontend.weight_version))

    async def _server_info(self, request: web.Request) -> web.Response:
        return web.json_response(server_info(self.settings))

    async def _loads(self, request: web.Request) -> web.Response:
        return web.json_response(loads(self.settings, self.scheduler, self.cache))

    async def _metrics(self, request: web.Request) -> web.Response:
        if not self.settings.enable_metrics:
            raise web.HTTPNotFound
        text = metrics(self.settings, self.scheduler, self.cache, aborted=self._frontend.aborted_total)
        return web.Response(text=text, content_type="text/plain")


def _sse(event: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(event).encode() + b"\n\n"


def _error(message: str, status: int) -> web.Response:
    return web.json_response({"error": {"message": message}}, status=status)


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.result()
