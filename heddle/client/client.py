"""The asynchronous client.

    async with Client("http://127.0.0.1:8765") as client:
        async for trajectory in client.rollout(prompts, samples_per_prompt=8):
            ...

Trajectories come at least once from the server and exactly once from here: the cursor acknowledges a page
when the next one is asked for, and ids that were seen are passed over.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from types import TracebackType
from typing import Self, TypeAlias, TypeVar
from urllib.parse import quote

import httpx
import orjson
from pydantic import BaseModel, ConfigDict, SecretStr, TypeAdapter, ValidationError

from heddle.api.fields import field_errors
from heddle.api.schemas import BatchRequest, PoolRequest, PromptRequest, WeightsRequest, WorkerRequest
from heddle.api.service import (
    BatchExplanation,
    BatchPage,
    BatchStatus,
    Explanation,
    QuarantinePage,
    ServerEvent,
    WeightsStatus,
    WorkerStatus,
)
from heddle.client.errors import ServerFailure
from heddle.client.sse import parse_events
from heddle.client.transport import RetryPolicy, Transport
from heddle.errors import InvalidRequest
from heddle.records import Trajectory, decode_trajectory
from heddle.types import Json

POLL_S = 30.0
"""How long one poll waits at the server; below the timeouts of common proxies."""

PAGE_LIMIT = 200
"""Trajectories asked for at once."""

BATCH_PAGE_LIMIT = 1000
"""Batches asked for at once."""

DEFAULT_RETRY = RetryPolicy()

Prompt: TypeAlias = PromptRequest | Mapping[str, object]
"""``{"task": {...}}``, perhaps with ``prompt_id``, ``environment`` and ``metadata``."""

T = TypeVar("T")

WEIGHTS_WAIT_S = 1800.0
"""Longest wait for the answer to new weights: large ones take minutes, and a refusal twice as long."""


class _WorkerList(BaseModel):
    model_config = ConfigDict(frozen=True)
    workers: list[WorkerStatus]


_BATCH = TypeAdapter(BatchStatus)
_WORKER = TypeAdapter(WorkerStatus)
_WEIGHTS = TypeAdapter(WeightsStatus)
_BATCH_PAGE = TypeAdapter(BatchPage)
_EXPLANATION = TypeAdapter(Explanation)
_BATCH_EXPLANATION = TypeAdapter(BatchExplanation)
_QUARANTINE_PAGE = TypeAdapter(QuarantinePage)


def make_batch(
    prompts: Sequence[Prompt],
    *,
    samples_per_prompt: int = 1,
    environment: str | None = None,
    batch_id: str | None = None,
    sampling: Mapping[str, object] | None = None,
    limits: Mapping[str, object] | None = None,
    tools: Mapping[str, object] | None = None,
    batch_timeout_s: float | None = None,
) -> BatchRequest:
    """Build a submission. Raises ``InvalidRequest`` that names the field, as the server would."""
    fields: dict[str, object] = {
        "batch_id": batch_id or f"b-{uuid.uuid4().hex[:12]}",
        "environment": environment,
        "prompts": list(prompts),
        "samples_per_prompt": samples_per_prompt,
        "sampling": sampling or {},
        "limits": limits or {},
        "tools": tools or {},
        "batch_timeout_s": batch_timeout_s,
    }
    try:
        return BatchRequest.model_validate(fields)
    except ValidationError as exc:
        first = field_errors(exc, BatchRequest)[0]
        raise InvalidRequest(first.message, path=first.path, code=first.code) from exc


class Client:
    """Talks to one Heddle server. Close it, or use it as an async context manager.

    Every method raises Heddle's own errors: ``InvalidRequest`` with the path of the field, ``NotFound``,
    ``Conflict``, ``UnsupportedByEngine``, ``StoreError``, and ``ServerFailure`` for everything else.
    """

    def __init__(
        self,
        base_url: str = "http://127.0.0.1:8765",
        token: str | SecretStr | None = None,
        *,
        retry: RetryPolicy = DEFAULT_RETRY,
    ) -> None:
        self._transport = Transport(base_url, token=token, retry=retry)

    async def submit(
        self,
        prompts: BatchRequest | Sequence[Prompt],
        *,
        samples_per_prompt: int = 1,
        environment: str | None = None,
        batch_id: str | None = None,
        sampling: Mapping[str, object] | None = None,
        limits: Mapping[str, object] | None = None,
        tools: Mapping[str, object] | None = None,
        batch_timeout_s: float | None = None,
    ) -> BatchStatus:
        """Submit a batch; the other arguments are for prompts that are not a ``BatchRequest`` yet.

        A batch without an id gets one here, so that a lost answer never makes two batches of one.
        """
        if isinstance(prompts, BatchRequest):
            batch = prompts
            if batch.batch_id is None:
                batch = batch.model_copy(update={"batch_id": f"b-{uuid.uuid4().hex[:12]}"})
        else:
            batch = make_batch(
                prompts,
                samples_per_prompt=samples_per_prompt,
                environment=environment,
                batch_id=batch_id,
                sampling=sampling,
                limits=limits,
                tools=tools,
                batch_timeout_s=batch_timeout_s,
            )
        content = batch.model_dump_json().encode()
        response = await self._transport.request("POST", "/v1/batches", content=content, repeat=True)
        return _decode(_BATCH, response)

    async def batches(self) -> list[BatchStatus]:
        """All batches that the server knows, the latest first."""
        found: list[BatchStatus] = []
        after: str | None = None
        while True:
            page = _decode(_BATCH_PAGE, await self._get_page("/v1/batches", after, BATCH_PAGE_LIMIT))
            found += page.batches
            if page.cursor is None:
                return found
            after = page.cursor

    async def batch(self, batch_id: str) -> BatchStatus:
        """How a batch stands."""
        return _decode(_BATCH, await self._get(f"/v1/batches/{_part(batch_id)}"))

    async def cancel(self, batch_id: str) -> BatchStatus:
        """End what still runs of a batch; cancelling twice is cancelling once."""
        path = f"/v1/batches/{_part(batch_id)}"
        return _decode(_BATCH, await self._transport.request("DELETE", path, repeat=True))

    async def trajectories(
        self, batch_id: str, *, after: str | None = None
    ) -> AsyncGenerator[Trajectory, None]:
        """The batch's trajectories as they finish, until the batch is over; each one once.

        Survives a restart of the server. ``after`` goes on where an earlier iteration stopped.
        """
        path = f"/v1/batches/{_part(batch_id)}/trajectories"
        seen: set[str] = set()
        finished = False
        while not finished:
            params = {"wait": str(POLL_S), "limit": str(PAGE_LIMIT)}
            if after:
                params["after"] = after
            page = await self._transport.request(
                "GET", path, params=params, accept="application/x-ndjson", wait_s=POLL_S, repeat=True
            )
            for line in page.content.splitlines():
                trajectory = _record(line)
                if trajectory.trajectory_id not in seen:
                    seen.add(trajectory.trajectory_id)
                    yield trajectory
            after = page.headers.get("X-Heddle-Cursor", after)
            finished = page.headers.get("X-Heddle-Finished") == "true"

    async def rollout(
        self,
        prompts: BatchRequest | Sequence[Prompt],
        *,
        samples_per_prompt: int = 8,
        environment: str | None = None,
        batch_id: str | None = None,
        sampling: Mapping[str, object] | None = None,
        limits: Mapping[str, object] | None = None,
        tools: Mapping[str, object] | None = None,
        batch_timeout_s: float | None = None,
    ) -> AsyncGenerator[Trajectory, None]:
        """Submit, and give the trajectories as they finish."""
        batch = await self.submit(
            prompts,
            samples_per_prompt=samples_per_prompt,
            environment=environment,
            batch_id=batch_id,
            sampling=sampling,
            limits=limits,
            tools=tools,
            batch_timeout_s=batch_timeout_s,
        )
        async for trajectory in self.trajectories(batch.batch_id):
            yield trajectory

    async def trajectory(self, trajectory_id: str) -> Trajectory | None:
        """A finished trajectory, or None while it is open."""
        response = await self._get(f"/v1/trajectories/{_part(trajectory_id)}")
        if orjson.loads(response.content).get("status") == "pending":
            return None
        return _record(response.content)

    async def explain(self, trajectory_id: str) -> Explanation:
        """What a trajectory waits for."""
        return _decode(_EXPLANATION, await self._get(f"/v1/trajectories/{_part(trajectory_id)}/explain"))

    async def explain_batch(self, batch_id: str) -> BatchExplanation:
        """What a batch waits for."""
        return _decode(_BATCH_EXPLANATION, await self._get(f"/v1/batches/{_part(batch_id)}/explain"))

    async def quarantine(self, *, after: str | None = None, limit: int = PAGE_LIMIT) -> QuarantinePage:
        """Trajectories whose records were refused; ``after`` is the cursor of the page before."""
        return _decode(_QUARANTINE_PAGE, await self._get_page("/v1/quarantine", after, limit))

    async def events(self, after: int | None = None) -> AsyncGenerator[ServerEvent, None]:
        """What happens at the server, from now on or after an event id; goes on after a restart."""
        backoff = self._transport.backoff()
        while True:
            headers = {"Accept": "text/event-stream"}
            if after is not None:
                headers["Last-Event-ID"] = str(after)
            try:
                async with self._transport.stream("/v1/events", headers=headers) as response:
                    async for event in parse_events(response.aiter_bytes()):
                        backoff.succeeded()
                        after = event.event_id
                        yield event
                raise httpx.RemoteProtocolError("the stream ended")
            except httpx.TransportError as exc:
                await backoff.failed(exc)

    async def workers(self) -> list[WorkerStatus]:
        """All workers, with their queues."""
        return _decode(TypeAdapter(_WorkerList), await self._get("/v1/workers")).workers

    async def add_worker(self, *, tp_degree: int, slots: int | None = None) -> WorkerStatus:
        """Start one more worker. Never repeated: a second one may not be wanted."""
        order = WorkerRequest(tp_degree=tp_degree, slots=slots).model_dump_json().encode()
        return _decode(_WORKER, await self._transport.request("POST", "/v1/workers", content=order))

    async def change_pool(self, pool: str) -> Sequence[WorkerStatus]:
        """Make the pool the one that is spelled out, such as ``4+2+1+1``: add workers, drain others."""
        order = PoolRequest(pool=pool).model_dump_json().encode()
        response = await self._transport.request("PUT", "/v1/pool", content=order, repeat=True)
        return _decode(TypeAdapter(_WorkerList), response).workers

    async def remove_worker(self, worker_id: str) -> WorkerStatus:
        """Drain a worker."""
        path = f"/v1/workers/{_part(worker_id)}"
        return _decode(_WORKER, await self._transport.request("DELETE", path))

    async def pause(self) -> None:
        """Start no further generation."""
        await self._transport.request("POST", "/v1/pause", repeat=True)

    async def resume(self) -> None:
        """Let generations start again."""
        await self._transport.request("POST", "/v1/resume", repeat=True)

    async def update_weights(
        self, *, version: int, path: str | None = None, calls: Sequence[Mapping[str, Json]] = ()
    ) -> WeightsStatus:
        """Give all workers new weights, from a directory or by a trainer's calls; or none, if one refuses.

        Harmless when repeated. Raises ``UnsupportedByEngine``, ``Conflict`` for a version that is not newer.
        """
        order = {"version": version, "path": path, "calls": list(calls)}
        body = WeightsRequest.model_validate(order).model_dump_json().encode()
        response = await self._transport.request(
            "POST", "/v1/weights", content=body, wait_s=WEIGHTS_WAIT_S, repeat=True
        )
        return _decode(_WEIGHTS, response)

    async def close(self) -> None:
        """Release the connections."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _get(self, path: str) -> httpx.Response:
        return await self._transport.request("GET", path, repeat=True)

    async def _get_page(self, path: str, after: str | None, limit: int) -> httpx.Response:
        params = {"limit": str(limit)} | ({"after": after} if after else {})
        return await self._transport.request("GET", path, params=params, repeat=True)


def _part(identifier: str) -> str:
    """An id as one segment of a path, whatever is in it."""
    if not identifier:
        raise InvalidRequest("an id is required", path="path", code="invalid_id")
    return quote(identifier, safe="")


def _decode(adapter: TypeAdapter[T], response: httpx.Response) -> T:
    try:
        return adapter.validate_json(response.content)
    except ValidationError as exc:
        raise ServerFailure(f"{response.request.url.path}: not Heddle's answer", status=200) from exc


def _record(line: bytes) -> Trajectory:
    try:
        return decode_trajectory(line)
    except ValidationError as exc:
        raise ServerFailure("the server sent what is no trajectory", status=200) from exc
