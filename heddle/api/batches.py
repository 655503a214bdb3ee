"""Batches and their trajectories."""

from __future__ import annotations

from dataclasses import dataclass

import orjson
from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from heddle.api.bodies import read_id, read_model, read_query
from heddle.api.context import ApiContext
from heddle.api.replies import JSON, NDJSON, reply_bytes, reply_json
from heddle.api.routing import Answer, Route
from heddle.api.schemas import BatchRequest
from heddle.api.service import (
    BatchExplanation,
    BatchPage,
    BatchStatus,
    Explanation,
    QuarantinePage,
    TrajectoryPage,
)
from heddle.records import Trajectory

CURSOR_HEADER = "X-Heddle-Cursor"
FINISHED_HEADER = "X-Heddle-Finished"


class PageQuery(BaseModel):
    """The query of a list that comes in pages."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    after: str | None = Field(
        default=None,
        max_length=256,
        pattern=r"^[!-~]*$",
        description="The `cursor` of the page before. Omit for the first page.",
    )
    limit: int = Field(default=100, ge=1, le=1000, description="Most entries in one page.")


class TrajectoriesQuery(BaseModel):
    """The query of ``GET /v1/batches/{batch_id}/trajectories``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    after: str | None = Field(
        default=None,
        max_length=256,
        pattern=r"^[!-~]*$",
        description="The `cursor` of the page before; acknowledges it. Omit for the first page.",
    )
    wait: float = Field(
        default=0.0,
        ge=0.0,
        allow_inf_nan=False,
        description="Seconds to wait for a trajectory where there is none yet; capped at 60.",
    )
    limit: int = Field(default=100, ge=1, le=1000, description="Most trajectories in one page.")


@dataclass(frozen=True, slots=True)
class TrajectoriesBody:
    """A page as JSON; documentation only, since pages are spliced from stored bytes."""

    trajectories: list[Trajectory]
    cursor: str
    finished: bool


class BatchRoutes:
    """Handlers over the service; they hold no state of their own."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._service = context.service
        self._timing = context.timing

    def routes(self) -> tuple[Route, ...]:
        """The operations on batches and trajectories."""
        batch = Answer("The batch.", BatchStatus)
        batch_id, trajectory_id = ("batch_id",), ("trajectory_id",)
        return (
            Route(
                "POST", "/v1/batches", self.submit, "Submit a batch; idempotent where it carries a batch_id.",
                {201: Answer("Accepted.", BatchStatus), 200: Answer("It existed already.", BatchStatus)},
                "batches", body=BatchRequest, errors=(409, 503),
            ),
            Route(
                "GET", "/v1/batches", self.list_batches, "Batches, the latest first, in pages.",
                {200: Answer("A page.", BatchPage)}, "batches", query=PageQuery, errors=(503,),
            ),
            Route(
                "GET", "/v1/batches/{batch_id}", self.show, "Counts, progress and ETA of a batch.",
                {200: batch}, "batches", errors=(404, 503), id_parameters=batch_id,
            ),
            Route(
                "GET", "/v1/batches/{batch_id}/explain", self.explain_batch, "What a batch waits for.",
                {200: Answer("The reasons.", BatchExplanation)}, "batches",
                errors=(404, 503), id_parameters=batch_id,
            ),
            Route(
                "DELETE", "/v1/batches/{batch_id}", self.cancel, "Cancel what still runs of a batch.",
                {200: batch}, "batches", errors=(404, 409, 503), id_parameters=batch_id,
            ),
            Route(
                "GET", "/v1/batches/{batch_id}/trajectories", self.trajectories,
                "Finished trajectories in the order in which they finished (long poll with a cursor).",
                {200: Answer("A page.", TrajectoriesBody, (JSON, NDJSON))},
                "batches", query=TrajectoriesQuery, errors=(404, 503), id_parameters=batch_id,
            ),
            Route(
                "GET", "/v1/trajectories/{trajectory_id}", self.trajectory,
                "A finished trajectory, or its id and `pending`.",
                {200: Answer("The record.", Trajectory)}, "trajectories",
                errors=(404, 503), id_parameters=trajectory_id,
            ),
            Route(
                "GET", "/v1/quarantine", self.quarantine,
                "Trajectories whose records were refused, and how many by each gate.",
                {200: Answer("A page.", QuarantinePage)}, "trajectories", query=PageQuery, errors=(503,),
            ),
            Route(
                "GET", "/v1/trajectories/{trajectory_id}/explain", self.explain,
                "What a trajectory waits for.", {200: Answer("The reason.", Explanation)}, "trajectories",
                errors=(404, 503), id_parameters=trajectory_id,
            ),
        )  # fmt: skip

    async def submit(self, request: web.Request) -> web.StreamResponse:
        batch = await read_model(request, self._context, BatchRequest)
        status, created = await self._context.mutations.run(self._service.submit(batch))
        headers = {"Location": f"/v1/batches/{status.batch_id}"}
        return await reply_json(
            request, status, self._timing, status=201 if created else 200, headers=headers
        )

    async def list_batches(self, request: web.Request) -> web.StreamResponse:
        query = read_query(request, PageQuery)
        page = await self._service.batches(after=query.after or None, limit=query.limit)
        return await reply_json(request, page, self._timing)

    async def show(self, request: web.Request) -> web.StreamResponse:
        status = await self._service.batch(read_id(request, "batch_id"))
        return await reply_json(request, status, self._timing)

    async def cancel(self, request: web.Request) -> web.StreamResponse:
        batch_id = read_id(request, "batch_id")
        status = await self._context.mutations.run(self._service.cancel(batch_id))
        return await reply_json(request, status, self._timing)

    async def trajectories(self, request: web.Request) -> web.StreamResponse:
        batch_id = read_id(request, "batch_id")
        query = read_query(request, TrajectoriesQuery)
        page = await self._page(batch_id, query)
        if NDJSON in request.headers.get("Accept", ""):
            headers = {CURSOR_HEADER: page.cursor, FINISHED_HEADER: str(page.finished).lower()}
            lines = [part for record in page.records for part in (record, b"\n")]
            return await reply_bytes(request, lines, self._timing, content_type=NDJSON, headers=headers)
        return await reply_bytes(request, _splice(page), self._timing)

    async def trajectory(self, request: web.Request) -> web.StreamResponse:
        record = await self._service.trajectory(read_id(request, "trajectory_id"))
        return await reply_bytes(request, [record], self._timing)

    async def explain(self, request: web.Request) -> web.StreamResponse:
        explanation = await self._service.explain(read_id(request, "trajectory_id"))
        return await reply_json(request, explanation, self._timing)

    async def explain_batch(self, request: web.Request) -> web.StreamResponse:
        explanation = await self._service.explain_batch(read_id(request, "batch_id"))
        return await reply_json(request, explanation, self._timing)

    async def quarantine(self, request: web.Request) -> web.StreamResponse:
        query = read_query(request, PageQuery)
        page = await self._service.quarantine(after=query.after or None, limit=query.limit)
        return await reply_json(request, page, self._timing)

    async def _page(self, batch_id: str, query: TrajectoriesQuery) -> TrajectoryPage:
        """Wait for a page; a stopping server waits no longer and answers with what there is."""
        wait_s = min(query.wait, self._timing.max_wait_s)
        if wait_s > 0:
            page = await self._context.unless_stopping(self._fetch(batch_id, query, wait_s))
            if page is not None:
                return page
        return await self._fetch(batch_id, query, 0.0)

    async def _fetch(self, batch_id: str, query: TrajectoriesQuery, wait_s: float) -> TrajectoryPage:
        return await self._service.trajectories(
            batch_id, after=query.after or None, limit=query.limit, wait_s=wait_s
        )


def _splice(page: TrajectoryPage) -> list[bytes]:
    """The page as JSON around the stored bytes, which are neither decoded nor copied."""
    parts = [b'{"trajectories":[']
    for index, record in enumerate(page.records):
        parts += [b"," if index else b"", record]
    tail = b'],"cursor":%b,"finished":%b}' % (orjson.dumps(page.cursor), orjson.dumps(page.finished))
    return [*parts, tail]
