"""Open batches: one task per open trajectory, started, resumed, cancelled, and closed when all ended.

A batch is journalled before any of it runs, and a trajectory is visible only once its record is
committed. Ending the tasks (a shutdown) leaves open trajectories in the journal; the next start goes on
from their last committed half-step.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import structlog
from pydantic import ValidationError

from heddle.agent.loop import TrajectoryRun
from heddle.agent.order import LoopServices, PreparedPrompt
from heddle.api.schemas import BatchRequest
from heddle.control.events import BatchCancelled, BatchSubmitted
from heddle.coordinator.batches import EndedBatch, OpenBatch
from heddle.coordinator.broadcast import Broadcaster, Pulse
from heddle.coordinator.control_loop import ControlLoop
from heddle.coordinator.planners import Planners
from heddle.coordinator.prepare import PromptPreparer, orders, spec
from heddle.errors import ConfigError, InvalidRequest
from heddle.metrics import Metrics
from heddle.store.ports import BatchCounts, Store, StoredBatch
from heddle.turns import Turns
from heddle.types import BatchId, StopReason, TrajectoryId
from heddle.validation import in_words

RUNS_PER_SLICE = 64
"""Agent loops made in one turn of the event loop."""

TASKS_PER_SLICE = 64
"""Agent loops started in one turn of the event loop."""

ENDED_REMEMBERED = 1_000
"""Batches that are over and still known without the store."""

log = structlog.get_logger(__name__)


class BatchRunner:
    """Owns the tasks of every open trajectory."""

    def __init__(
        self,
        *,
        services: LoopServices,
        store: Store,
        control: ControlLoop,
        preparer: PromptPreparer,
        broadcaster: Broadcaster,
        metrics: Metrics,
        tasks: asyncio.TaskGroup,
        planners: Planners,
        timeout_s: float | None = None,
    ) -> None:
        """``timeout_s`` bounds the batches that bring no bound of their own."""
        self._services = services
        self._store = store
        self._control = control
        self._preparer = preparer
        self._broadcaster = broadcaster
        self._metrics = metrics
        self._tasks = tasks
        self._planners = planners
        self._timeout_s = timeout_s
        self._admitting = Turns()
        self._launching = Turns()
        self._running: dict[TrajectoryId, asyncio.Task[None]] = {}
        self._starting: set[TrajectoryId] = set()
        """Known to the control plane, and about to get their tasks."""
        self.open: dict[BatchId, OpenBatch] = {}
        self.ended: dict[BatchId, EndedBatch] = {}
        """The latest; nothing changes them any more, and to ask the store takes a thread."""
        self.batch_finished = Pulse()
        """Fires when a batch is over."""

    async def prepared(self) -> None:
        """Wait until batches can be started: the first waits for machine code."""
        await self._planners.ready()

    async def start(
        self, stored: StoredBatch, request: BatchRequest, prompts: Sequence[PreparedPrompt]
    ) -> None:
        """Run a batch that was journalled just now."""
        batch = self.open[stored.batch_id] = OpenBatch(stored.batch_id, stored.total, stored.created_at)
        for index, order in enumerate(orders(stored.batch_id, request, prompts)):
            if index % RUNS_PER_SLICE == 0:
                await self._admitting.next()
            batch.runs[order.trajectory_id] = TrajectoryRun(self._services, order)
        await self._launch(batch, request)

    async def recover(self) -> int:
        """Go on with what an earlier process left open. Returns the number of trajectories."""
        resumed = 0
        unfinished = await self._store.unfinished_batches()
        if unfinished:
            await self.prepared()
        for state in unfinished:
            if (stored := await self._store.batch(state.batch_id)) is not None:
                resumed += await self._resume(stored)
        return resumed

    async def cancel(self, batch: OpenBatch) -> None:
        """End every open trajectory of the batch; each still leaves its record."""
        if batch.cancelled:
            return
        batch.cancelled = True
        await self._store.mark_cancelled(batch.batch_id)
        self._control.post(BatchCancelled(batch.batch_id, StopReason.CANCELLED))
        self._broadcaster.publish("batch.cancelled", {"batch_id": batch.batch_id})

    def has_owner(self, trajectory_id: TrajectoryId) -> bool:
        """Whether a task runs this trajectory, or is about to."""
        return trajectory_id in self._running or trajectory_id in self._starting

    def uses_its_slot(self, trajectory_id: TrajectoryId) -> bool:
        """Whether somebody generates for it, or holds a grant that was not taken up yet."""
        return self._control.uses_its_slot(trajectory_id)

    async def close(self) -> None:
        """Stop every agent loop, leaving its trajectory open in the journal."""
        expiries = [batch.expiry for batch in self.open.values() if batch.expiry is not None]
        running = [*self._running.values(), *expiries]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _resume(self, stored: StoredBatch) -> int:
        batch = OpenBatch(stored.batch_id, stored.total, stored.created_at, stored.cancelled)
        done = await self._store.finished_ids(stored.batch_id)
        batch.count(await self._store.counts(stored.batch_id))
        if len(done) == stored.total:
            await self._finish(batch)
            return 0
        try:
            request = BatchRequest.model_validate_json(stored.request)
            prompts = await self._preparer.prepare(request)
        except (ValidationError, InvalidRequest) as exc:
            raise ConfigError(
                f"the open batch {stored.batch_id} cannot go on under this configuration: {in_words(exc)}; "
                "start Heddle as it was configured then, or with another data directory"
            ) from exc
        for order in orders(stored.batch_id, request, prompts, attempt=1):
            if order.trajectory_id not in done:
                batch.runs[order.trajectory_id] = TrajectoryRun(self._services, order)
        async for trajectory_id, entries in self._store.journals(list(batch.runs)):
            batch.runs[trajectory_id].restore(entries)
        resumed = len(batch.runs)
        await self._launch(batch, request)
        log.info("batch resumed", batch=batch.batch_id, open=resumed, finished=len(done))
        return resumed

    async def _launch(self, batch: OpenBatch, request: BatchRequest) -> None:
        """Tell the control plane of every trajectory in one event, then start the agent loops in slices.

        In this order: what an agent loop posts must find its trajectory known. Grants wait in mailboxes.
        """
        self.open[batch.batch_id] = batch
        runs = list(batch.runs.items())
        for trajectory_id, run in runs:
            self._control.enrol(trajectory_id, run)
        self._starting.update(batch.runs)
        specs = tuple(spec(run) for _, run in runs)
        priority = request.priority
        left = None if priority.deadline_s is None else _seconds_left(batch, priority.deadline_s)
        self._control.post(BatchSubmitted(batch.batch_id, specs, priority.weight, left))
        if batch.cancelled:
            self._control.post(BatchCancelled(batch.batch_id, StopReason.CANCELLED))
        timeout_s = request.batch_timeout_s or self._timeout_s
        if timeout_s is not None:
            batch.expiry = self._tasks.create_task(self._expire(batch, timeout_s))
        self._broadcaster.publish("batch.submitted", {"batch_id": batch.batch_id, "total": batch.total})
        for index, (trajectory_id, run) in enumerate(runs):
            if index % TASKS_PER_SLICE == 0:
                await self._launching.next()
            task = self._tasks.create_task(self._drive(batch, trajectory_id, run), name=trajectory_id)
            self._running[trajectory_id] = task
            self._starting.discard(trajectory_id)
            task.add_done_callback(partial(self._forget, trajectory_id))

    def _forget(self, trajectory_id: TrajectoryId, task: asyncio.Task[None]) -> None:
        if self._running.get(trajectory_id) is task:
            del self._running[trajectory_id]

    async def _drive(self, batch: OpenBatch, trajectory_id: TrajectoryId, run: TrajectoryRun) -> None:
        try:
            reason = await run.run()
        finally:
            self._control.dismiss(trajectory_id)
        batch.count(BatchCounts({reason.status.value: 1}, run.sampled_tokens))
        del batch.runs[trajectory_id]
        batch.changed.fire()
        if not batch.runs:
            await self._finish(batch)

    async def _expire(self, batch: OpenBatch, timeout_s: float) -> None:
        """Wait for the end of the batch's time, by the clock on the wall, and end what is open."""
        await asyncio.sleep(max(0.0, _seconds_left(batch, timeout_s)))
        log.warning("batch timed out", batch=batch.batch_id, timeout_s=timeout_s, open=len(batch.runs))
        self._control.post(BatchCancelled(batch.batch_id, StopReason.TIMED_OUT))
        self._broadcaster.publish("batch.timed_out", {"batch_id": batch.batch_id, "open": len(batch.runs)})

    async def _finish(self, batch: OpenBatch) -> None:
        if batch.expiry is not None:
            batch.expiry.cancel()
        finished_at = time.time()
        makespan = finished_at - batch.created_at
        await self._store.mark_finished(batch.batch_id, finished_at)
        self._remember(EndedBatch(replace(batch.state, finished_at=finished_at), batch.counts))
        self.open.pop(batch.batch_id, None)
        batch.changed.fire()
        self.batch_finished.fire()
        self._metrics.batch_finished(makespan)
        self._broadcaster.publish("batch.finished", {"batch_id": batch.batch_id, "makespan_s": makespan})
        log.info("batch finished", batch=batch.batch_id, trajectories=batch.total, makespan_s=makespan)

    def _remember(self, batch: EndedBatch) -> None:
        if len(self.ended) >= ENDED_REMEMBERED:
            del self.ended[next(iter(self.ended))]
        self.ended[batch.state.batch_id] = batch


def _seconds_left(batch: OpenBatch, limit_s: float) -> float:
    """Of ``limit_s`` since the submission; negative where they have passed."""
    return batch.created_at + limit_s - time.time()
