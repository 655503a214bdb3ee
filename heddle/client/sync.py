"""The blocking twin: the same client on an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from pydantic import SecretStr

from heddle.api.schemas import BatchRequest
from heddle.api.service import (
    BatchExplanation,
    BatchStatus,
    Explanation,
    QuarantinePage,
    ServerEvent,
    WeightsStatus,
    WorkerStatus,
)
from heddle.client.client import DEFAULT_RETRY, PAGE_LIMIT, Client, Prompt
from heddle.client.transport import RetryPolicy
from heddle.records import Trajectory
from heddle.types import Json

T = TypeVar("T")

CLOSE_S = 10.0
"""Longest wait for the loop to end."""


class _LoopThread:
    """An event loop that runs in its own thread until closed."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="heddle-client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` to its end; an interrupt of the caller (Ctrl-C) cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    @property
    def closed(self) -> bool:
        return self._loop.is_closed()

    def close(self) -> None:
        """Stop the loop and join the thread."""
        self.run(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_S)
        self._loop.close()


class SyncClient:
    """As :class:`heddle.client.Client`, but every call blocks. Safe to use from several threads."""

    def __init__(
        self,
        base_url: str = "http://127.0.0.1:8765",
        token: str | SecretStr | None = None,
        *,
        retry: RetryPolicy = DEFAULT_RETRY,
    ) -> None:
        self._client = Client(base_url, token, retry=retry)
        self._loop = _LoopThread()

    def submit(
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
        """See :meth:`heddle.client.Client.submit`."""
        submission = self._client.submit(
            prompts,
            samples_per_prompt=samples_per_prompt,
            environment=environment,
            batch_id=batch_id,
            sampling=sampling,
            limits=limits,
            tools=tools,
            batch_timeout_s=batch_timeout_s,
        )
        return self._loop.run(submission)

    def rollout(
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
    ) -> Iterator[Trajectory]:
        """See :meth:`heddle.client.Client.rollout`."""
        rollout = self._client.rollout(
            prompts,
            samples_per_prompt=samples_per_prompt,
            environment=environment,
            batch_id=batch_id,
            sampling=sampling,
            limits=limits,
            tools=tools,
            batch_timeout_s=batch_timeout_s,
        )
        return self._iterate(rollout)

    def batches(self) -> list[BatchStatus]:
        """See :meth:`heddle.client.Client.batches`."""
        return self._loop.run(self._client.batches())

    def batch(self, batch_id: str) -> BatchStatus:
        """See :meth:`heddle.client.Client.batch`."""
        return self._loop.run(self._client.batch(batch_id))

    def cancel(self, batch_id: str) -> BatchStatus:
        """See :meth:`heddle.client.Client.cancel`."""
        return self._loop.run(self._client.cancel(batch_id))

    def trajectories(self, batch_id: str, *, after: str | None = None) -> Iterator[Trajectory]:
        """See :meth:`heddle.client.Client.trajectories`."""
        return self._iterate(self._client.trajectories(batch_id, after=after))

    def trajectory(self, trajectory_id: str) -> Trajectory | None:
        """See :meth:`heddle.client.Client.trajectory`."""
        return self._loop.run(self._client.trajectory(trajectory_id))

    def explain(self, trajectory_id: str) -> Explanation:
        """See :meth:`heddle.client.Client.explain`."""
        return self._loop.run(self._client.explain(trajectory_id))

    def explain_batch(self, batch_id: str) -> BatchExplanation:
        """See :meth:`heddle.client.Client.explain_batch`."""
        return self._loop.run(self._client.explain_batch(batch_id))

    def quarantine(self, *, after: str | None = None, limit: int = PAGE_LIMIT) -> QuarantinePage:
        """See :meth:`heddle.client.Client.quarantine`."""
        return self._loop.run(self._client.quarantine(after=after, limit=limit))

    def events(self, after: int | None = None) -> Iterator[ServerEvent]:
        """See :meth:`heddle.client.Client.events`."""
        return self._iterate(self._client.events(after))

    def workers(self) -> list[WorkerStatus]:
        """See :meth:`heddle.client.Client.workers`."""
        return self._loop.run(self._client.workers())

    def add_worker(self, *, tp_degree: int, slots: int | None = None) -> WorkerStatus:
        """See :meth:`heddle.client.Client.add_worker`."""
        return self._loop.run(self._client.add_worker(tp_degree=tp_degree, slots=slots))

    def change_pool(self, pool: str) -> Sequence[WorkerStatus]:
        """See :meth:`heddle.client.Client.change_pool`."""
        return self._loop.run(self._client.change_pool(pool))

    def remove_worker(self, worker_id: str) -> WorkerStatus:
        """See :meth:`heddle.client.Client.remove_worker`."""
        return self._loop.run(self._client.remove_worker(worker_id))

    def pause(self) -> None:
        """See :meth:`heddle.client.Client.pause`."""
        self._loop.run(self._client.pause())

    def resume(self) -> None:
        """See :meth:`heddle.client.Client.resume`."""
        self._loop.run(self._client.resume())

    def update_weights(
        self, *, version: int, path: str | None = None, calls: Sequence[Mapping[str, Json]] = ()
    ) -> WeightsStatus:
        """See :meth:`heddle.client.Client.update_weights`."""
        return self._loop.run(self._client.update_weights(version=version, path=path, calls=calls))

    def close(self) -> None:
        """Release the connections and end the thread."""
        if not self._loop.closed:
            self._loop.run(self._client.close())
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _iterate(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        """Pull from an asynchronous generator; leaving the loop early ends the request behind it."""
        try:
            while (item := self._loop.run(_next(items))) is not None:
                yield item
        finally:
            if not self._loop.closed:
                self._loop.run(items.aclose())


async def _next(items: AsyncGenerator[T, None]) -> T | None:
    return await anext(items, None)
