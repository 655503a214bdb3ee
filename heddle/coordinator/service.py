"""The coordinator as its surfaces see it: implements ``RolloutService``.

Reads go to the store and to the control plane's queries; the few writes are validated here and handed
to those who own the state.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence

import orjson
from pydantic import ValidationError

from heddle.agent.order import LoopServices
from heddle.api.schemas import BatchRequest, PoolRequest, WeightsRequest, WorkerRequest
from heddle.api.service import (
    BatchExplanation,
    BatchPage,
    BatchStatus,
    Explanation,
    GateFinding,
    QuarantinedTrajectory,
    QuarantinePage,
    ServerEvent,
    TrajectoryPage,
    WeightsStatus,
    WorkerStatus,
)
from heddle.control.events import DispatchPaused, DispatchResumed, WorkerAdded, WorkerDrainRequested
from heddle.coordinator.batches import OpenBatch
from heddle.coordinator.broadcast import Broadcaster
from heddle.coordinator.control_loop import ControlLoop
from heddle.coordinator.explain import batch_explanation, explanation, finished_explanation
from heddle.coordinator.pool import WorkerPool
from heddle.coordinator.prepare import PromptPreparer
from heddle.coordinator.provision import Capacity, plan_change
from heddle.coordinator.runner import BatchRunner
from heddle.coordinator.telemetry import Telemetry
from heddle.coordinator.weights import WeightKeeper
from heddle.errors import Conflict, InvalidRequest, NotFound
from heddle.store.ports import BatchState, Store, StoredBatch
from heddle.types import (
    BatchId,
    TrajectoryId,
    TrajectoryPhase,
    WorkerId,
    WorkerPhase,
    WorkerSpec,
    WorkerView,
)

QUEUE_SHOWN = 100
"""Waiting trajectories listed per worker."""


class Coordinator:
    """Made by ``heddle.app.open_coordinator``."""

    def __init__(
        self,
        *,
        services: LoopServices,
        store: Store,
        control: ControlLoop,
        runner: BatchRunner,
        pool: WorkerPool,
        preparer: PromptPreparer,
        broadcaster: Broadcaster,
        weights: WeightKeeper,
        telemetry: Telemetry,
        capacity: Capacity,
    ) -> None:
        self._services = services
        self._store = store
        self._control = control
        self._runner = runner
        self._pool = pool
        self._preparer = preparer
        self._broadcaster = broadcaster
        self._weights = weights
        self._telemetry = telemetry
        self._capacity = capacity

    # -------------------------------------------------------------------------------------- batches

    async def submit(self, request: BatchRequest) -> tuple[BatchStatus, bool]:
        batch_id = BatchId(request.batch_id or f"b{secrets.token_hex(5)}")
        canonical = _canonical(request)
        if await self._store.batch_state(batch_id) is not None:
            return await self._existing(batch_id, canonical), False
        prompts = await self._preparer.prepare(request)
        await self._runner.prepared()
        total = len(prompts) * request.samples_per_prompt
        stored = StoredBatch(batch_id, canonical, total, time.time(), cancelled=False, finished_at=None)
        if not await self._store.add_batch(stored):
            return await self._existing(batch_id, canonical), False
        await self._runner.start(stored, request, prompts)
        return await self._status(stored.state), True

    async def _existing(self, batch_id: BatchId, canonical: bytes) -> BatchStatus:
        known = await self._store.batch(batch_id)
        if known is None or (known.request != canonical and _read_again(known.request) != canonical):
            raise Conflict(f"batch {batch_id} exists already, with a different content")
        return await self._status(known.state)

    async def batches(self, *, after: str | None, limit: int) -> BatchPage:
        before = _parse_cursor(after) if after is not None else None
        listed = await self._store.batches(before=before, limit=limit)
        older = len(listed) == limit and listed[-1].place > 1
        return BatchPage(
            batches=[await self._status(entry.state) for entry in listed],
            cursor=str(listed[-1].place) if older else None,
        )

    async def batch(self, batch_id: str) -> BatchStatus:
        return await self._status(await self._stored(batch_id))

    async def cancel(self, batch_id: str) -> BatchStatus:
        stored = await self._stored(batch_id)
        batch = self._runner.open.get(stored.batch_id)
        if batch is not None:
            await self._runner.cancel(batch)
        return await self.batch(batch_id)

    async def trajectories(
        self, batch_id: str, *, after: str | None, limit: int, wait_s: float
    ) -> TrajectoryPage:
        cursor = _parse_cursor(after)
        stored = await self._stored(batch_id)
        deadline = self._services.now() + wait_s
        while True:
            batch = self._runner.open.get(stored.batch_id)
            seen = 0 if batch is None else batch.changed.fired  # what ends while the store is read counts
            records = await self._store.finished(stored.batch_id, after=cursor, limit=limit)
            left = deadline - self._services.now()
            if records or batch is None or left <= 0.0:
                break
            await batch.changed.wait(left, since=seen)
        if records:
            cursor = records[-1].sequence
        over = cursor >= stored.total and stored.batch_id not in self._runner.open
        return TrajectoryPage([r.record for r in records], str(cursor), finished=over)

    async def trajectory(self, trajectory_id: str) -> bytes:
        record = await self._record(trajectory_id)
        return record or orjson.dumps({"trajectory_id": trajectory_id, "status": "pending"})

    async def explain(self, trajectory_id: str) -> Explanation:
        if await self._record(trajectory_id) is not None:
            return finished_explanation(trajectory_id)
        try:
            found = self._control.plane.explain(TrajectoryId(trajectory_id), self._services.now())
        except NotFound:  # it has left the control plane; its task is about to end
            return finished_explanation(trajectory_id)
        return explanation(found)

    async def explain_batch(self, batch_id: str) -> BatchExplanation:
        stored = await self._stored(batch_id)
        groups = self._control.plane.explain_batch(stored.batch_id, self._services.now())
        return batch_explanation(batch_id, _state(stored, self._runner.open.get(stored.batch_id)), groups)

    async def quarantine(self, *, after: str | None, limit: int) -> QuarantinePage:
        cursor = _parse_cursor(after)
        entries = await self._store.quarantine(after=cursor, limit=limit)
        counts = await self._store.quarantine_counts()
        return QuarantinePage(
            counts={gate.value: count for gate, count in counts.items()},
            trajectories=[
                QuarantinedTrajectory(
                    entry.trajectory_id,
                    entry.batch_id,
                    [GateFinding(found.gate, found.message) for found in entry.violations],
                )
                for entry in entries
            ],
            cursor=str(entries[-1].sequence if entries else cursor),
        )

    def events(self, after_id: int | None) -> AsyncIterator[ServerEvent]:
        return self._broadcaster.listen(after_id)

    # -------------------------------------------------------------------------------------- workers

    async def workers(self) -> Sequence[WorkerStatus]:
        return [self._worker_status(view) for view in self._control.plane.worker_views()]

    async def add_worker(self, request: WorkerRequest) -> WorkerStatus:
        self._capacity.check_room(self._control.plane.worker_views(), request.tp_degree)
        slots = request.slots or self._capacity.slots.of(request.tp_degree)
        return self._worker_status(self._add_worker(request.tp_degree, slots))

    async def change_pool(self, request: PoolRequest) -> Sequence[WorkerStatus]:
        change = plan_change(self._control.plane.worker_views(), request.pool, self._capacity)
        for spec in change.add:  # before the others leave: a pool that is about to be whole is not hopeless
            self._add_worker(spec.tp_degree, spec.slots)
        for worker_id in change.drain:
            self._control.post(WorkerDrainRequested(worker_id))
        return await self.workers()

    async def remove_worker(self, worker_id: str) -> WorkerStatus:
        status = self._worker_status(self._worker(worker_id))
        self._control.post(WorkerDrainRequested(WorkerId(worker_id)))
        return status

    async def pause(self) -> None:
        self._control.post(DispatchPaused())
        self._broadcaster.publish("dispatch.paused", {})

    async def resume(self) -> None:
        if self._weights.updating:
            raise Conflict("workers are being given new weights; dispatch resumes after that")
        self._control.post(DispatchResumed())
        self._broadcaster.publish("dispatch.resumed", {})

    async def update_weights(self, request: WeightsRequest) -> WeightsStatus:
        return await self._weights.update(request)

    async def ready(self) -> bool:
        return any(view.phase is WorkerPhase.READY for view in self._control.plane.worker_views())

    def at_rest(self) -> bool:
        """Whether no batch is open."""
        return not self._runner.open

    # --------------------------------------------------------------------------------------- helpers

    async def _stored(self, batch_id: str) -> BatchState:
        """One that is open, or ended a short while ago, is known without the store. Raises ``NotFound``."""
        known = self._runner.open.get(BatchId(batch_id)) or self._runner.ended.get(BatchId(batch_id))
        if known is not None:
            return known.state
        stored = await self._store.batch_state(BatchId(batch_id))
        if stored is None:
            raise NotFound(f"no batch {batch_id!r}")
        return stored

    async def _status(self, stored: BatchState) -> BatchStatus:
        batch = self._runner.open.get(stored.batch_id)
        known = batch or self._runner.ended.get(stored.batch_id)
        counts = await self._store.counts(stored.batch_id) if known is None else known.counts
        finished = sum(counts.by_status.values())
        by_phase = Counter[str]()
        if batch is not None:
            phases = self._control.plane.batch_phases(stored.batch_id)
            by_phase.update({str(p): n for p, n in phases.items() if p is not TrajectoryPhase.FINISHED})
        return BatchStatus(
            batch_id=stored.batch_id,
            state=_state(stored, batch),
            total=stored.total,
            finished=finished,
            by_status=counts.by_status,
            by_phase=by_phase,
            sampled_tokens=counts.sampled_tokens + (batch.sampled_tokens if batch else 0),
            created_at=stored.created_at,
            finished_at=stored.finished_at,
            eta_s=batch.eta_s(time.time()) if batch else None,
        )

    async def _record(self, trajectory_id: str) -> bytes | None:
        """The finished record; ``None`` of an open trajectory. Raises ``NotFound``."""
        wanted = TrajectoryId(trajectory_id)
        record = await self._store.trajectory(wanted)
        if record is None and not any(wanted in batch.runs for batch in self._runner.open.values()):
            record = await self._store.trajectory(wanted)  # it may have ended during the first look
            if record is None:
                raise NotFound(f"no trajectory {trajectory_id!r}")
        return record

    def _add_worker(self, tp_degree: int, slots: int) -> WorkerView:
        worker = WorkerSpec(self._control.plane.unused_worker_id(), tp_degree, slots)
        self._control.post(WorkerAdded(worker))
        return self._worker(worker.worker_id)

    def _worker(self, worker_id: str) -> WorkerView:
        for view in self._control.plane.worker_views():
            if view.worker_id == worker_id:
                return view
        raise NotFound(f"no worker {worker_id!r}")

    def _worker_status(self, view: WorkerView) -> WorkerStatus:
        process = self._pool.process(view.worker_id)
        pace = self._telemetry.pace(view.worker_id)
        line = pace.line if pace else None
        return WorkerStatus(
            worker_id=view.worker_id,
            tp_degree=view.tp_degree,
            slots=view.slots,
            phase=view.phase,
            running=view.running,
            waiting=view.waiting,
            resident=view.resident,
            restarts=process.restarts if process else 0,
            queue=[str(t) for t in self._control.plane.queue(view.worker_id, QUEUE_SHOWN)],
            url=process.url if process else None,
            log_path=str(process.log_path) if process else None,
            pid=process.pid if process else None,
            weight_version=process.weight_version if process else None,
            withheld=process.withheld if process else None,
            step_base_s=line.base_s if line else None,
            step_per_generation_s=line.per_generation_s if line else None,
            pace_ratio=pace.ratio if pace else None,
            behind=pace.behind if pace else False,
        )


def _canonical(request: BatchRequest) -> bytes:
    return orjson.dumps(request.model_dump(mode="json"), option=orjson.OPT_SORT_KEYS)


def _read_again(stored: bytes) -> bytes | None:
    """A request that an older Heddle stored, with the fields of today; ``None`` of a foreign one."""
    try:
        return _canonical(BatchRequest.model_validate_json(stored))
    except ValidationError:
        return None


def _state(stored: BatchState, batch: OpenBatch | None) -> str:
    if batch is not None or stored.finished_at is None:  # journalled, and just about to be started
        return "running"
    return "cancelled" if stored.cancelled else "finished"


def _parse_cursor(after: str | None) -> int:
    if after is None:
        return 0
    if not after.isdecimal() or len(after) > 18:
        raise InvalidRequest(f"{after!r} is not a cursor that this server gave", path="query.after")
    return int(after)
