"""Workers and the switches of dispatch."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from heddle.api.bodies import expect_no_body, read_id, read_model
from heddle.api.context import ApiContext
from heddle.api.replies import reply_json
from heddle.api.routing import Answer, Route
from heddle.api.schemas import PoolRequest, WeightsRequest, WorkerRequest
from heddle.api.service import WeightsStatus, WorkerStatus


@dataclass(frozen=True, slots=True)
class DispatchBody:
    """Whether generations may start: ``paused`` or ``running``."""

    dispatch: str


class OperationRoutes:
    """Handlers over the service; they hold no state of their own."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._service = context.service
        self._timing = context.timing

    def routes(self) -> tuple[Route, ...]:
        """The operations on workers and on dispatch."""
        worker = Answer("The worker.", WorkerStatus)
        return (
            Route(
                "GET", "/v1/workers", self.list_workers, "All workers, with their queues.",
                {200: Answer("The workers.", WorkerStatus, wrapped="workers")}, "workers",
            ),
            Route(
                "POST", "/v1/workers", self.add_worker, "Start one more worker.",
                {201: worker}, "workers", body=WorkerRequest, errors=(409,),
            ),
            Route(
                "DELETE", "/v1/workers/{worker_id}", self.remove_worker,
                "Drain a worker; what queues there goes elsewhere.", {200: worker}, "workers",
                errors=(404, 409), id_parameters=("worker_id",),
            ),
            Route(
                "PUT", "/v1/pool", self.change_pool, "Make the pool another one: add and drain workers.",
                {200: Answer("The workers.", WorkerStatus, wrapped="workers")}, "workers",
                body=PoolRequest, errors=(409,),
            ),
            Route(
                "POST", "/v1/pause", self.pause, "Start no further generation.",
                {200: Answer("Paused.", DispatchBody)}, "dispatch", errors=(409,),
            ),
            Route(
                "POST", "/v1/resume", self.resume, "Let generations start again.",
                {200: Answer("Running.", DispatchBody)}, "dispatch", errors=(409,),
            ),
            Route(
                "POST", "/v1/weights", self.update_weights, "Give the engines new weights.",
                {200: Answer("All workers serve them.", WeightsStatus)}, "dispatch",
                body=WeightsRequest, errors=(409, 502),
            ),
        )  # fmt: skip

    async def list_workers(self, request: web.Request) -> web.StreamResponse:
        return await reply_json(request, {"workers": await self._service.workers()}, self._timing)

    async def add_worker(self, request: web.Request) -> web.StreamResponse:
        order = await read_model(request, self._context, WorkerRequest)
        status = await self._context.mutations.run(self._service.add_worker(order))
        return await reply_json(request, status, self._timing, status=201)

    async def change_pool(self, request: web.Request) -> web.StreamResponse:
        order = await read_model(request, self._context, PoolRequest)
        workers = await self._context.mutations.run(self._service.change_pool(order))
        return await reply_json(request, {"workers": workers}, self._timing)

    async def remove_worker(self, request: web.Request) -> web.StreamResponse:
        worker_id = read_id(request, "worker_id")
        status = await self._context.mutations.run(self._service.remove_worker(worker_id))
        return await reply_json(request, status, self._timing)

    async def pause(self, request: web.Request) -> web.StreamResponse:
        return await self._switch(request, self._service.pause, "paused")

    async def resume(self, request: web.Request) -> web.StreamResponse:
        return await self._switch(request, self._service.resume, "running")

    async def update_weights(self, request: web.Request) -> web.StreamResponse:
        order = await read_model(request, self._context, WeightsRequest)
        status = await self._context.mutations.run(self._service.update_weights(order))
        return await reply_json(request, status, self._timing)

    async def _switch(
        self, request: web.Request, act: Callable[[], Coroutine[Any, Any, None]], state: str
    ) -> web.StreamResponse:
        await expect_no_body(request, self._context)
        await self._context.mutations.run(act())
        return await reply_json(request, DispatchBody(state), self._timing)
