"""An honest coordinator in memory: batches progress when the test says so, nothing is generated.

Implements the whole of ``RolloutService``, so that the REST surface and the client meet the promises of
the protocol (idempotency, cursors, gaps in the event buffer) and not the shape of a mock.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import orjson

from heddle.api.schemas import BatchRequest, PoolRequest, WeightsRequest, WorkerRequest
from heddle.api.service import (
    BatchExplanation,
    BatchPage,
    BatchStatus,
    Explanation,
    QuarantinedTrajectory,
    QuarantinePage,
    ServerEvent,
    TrajectoryPage,
    WaitingGroup,
    WeightsStatus,
    WorkerStatus,
)
from heddle.errors import Conflict, InvalidRequest, NotFound, UnsupportedByEngine
from heddle.records import Timing, Trajectory, encode_trajectory
from heddle.types import Json, Message, StopReason

EVENT_BUFFER = 200
MAX_TASK_CHARS = 2_000
ENVIRONMENTS = ("math", "code", "search")


@dataclass
class ScriptedBatch:
    """One batch and what has finished of it."""

    batch_id: str
    request: bytes
    trajectory_ids: list[str]
    prompts: list[dict[str, Json]]
    created_at: float
    records: list[bytes] = field(default_factory=list)
    finished_ids: list[str] = field(default_factory=list)
    cancelled: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def over(self) -> bool:
        return len(self.records) == len(self.trajectory_ids)

    def status(self) -> BatchStatus:
        states = Counter(orjson.loads(record)["status"] for record in self.records)
        open_count = len(self.trajectory_ids) - len(self.records)
        state = ("cancelled" if self.cancelled else "finished") if self.over else "running"
        return BatchStatus(
            batch_id=self.batch_id,
            state=state,
            total=len(self.trajectory_ids),
            finished=len(self.records),
            by_status=dict(states),
            by_phase={"queued": open_count} if open_count else {},
            sampled_tokens=3 * len(self.records),
            created_at=self.created_at,
            finished_at=self.created_at + 1.0 if self.over else None,
            eta_s=float(open_count) if self.records and open_count else None,
        )


def make_record(batch_id: str, trajectory_id: str, **changes: object) -> Trajectory:
    """A small finished trajectory."""
    sample = int(trajectory_id.rpartition("-t")[2])
    record = Trajectory(
        trajectory_id=trajectory_id,
        batch_id=batch_id,
        group_id=trajectory_id.rpartition("-t")[0],
        prompt_id="p0",
        sample_index=sample,
        attempt=0,
        environment="math",
        status=StopReason.COMPLETED.status,
        stop_reason=StopReason.COMPLETED,
        failure=None,
        prompt_ids=[1, 2],
        response_ids=[3, 4, 5],
        response_mask=[1, 1, 1],
        response_logprobs=[-0.1, -0.2, -0.3],
        weight_versions=[0, 0, 0],
        steps=[],
        messages=[Message("user", "2 + 2?"), Message("assistant", "4")],
        reward=1.0,
        reward_info={},
        predictions=[],
        timing=Timing(decode_base=1.0, wall=1.0),
    )
    return replace(record, **changes)  # type: ignore[arg-type]  # any field may be changed by its name


class ScriptedService:
    """A ``RolloutService`` whose progress is a method call."""

    def __init__(self, *, event_buffer: int = EVENT_BUFFER) -> None:
        self.known: dict[str, ScriptedBatch] = {}
        self.pool: dict[str, WorkerStatus] = {}
        self.quarantined: list[QuarantinedTrajectory] = []
        self.paused = False
        self.is_ready = True
        self.failure: Exception | None = None
        """Raised by the next call of any method."""
        self.polls_open = 0
        self.streams_open = 0
        self.submissions = 0
        self.before_submit: Callable[[], Awaitable[object]] | None = None
        self._buffer: deque[ServerEvent] = deque(maxlen=event_buffer)
        self._next_event = 1
        self._emitted = asyncio.Event()
        self._put_worker("w0", tp_degree=1, slots=4)

    # ------------------------------------------------------------------------------- the script

    def finish(self, batch_id: str, count: int = 1, **changes: object) -> list[str]:
        """Finish the next ``count`` trajectories of a batch, with these fields in their records."""
        batch = self.known[batch_id]
        done = batch.trajectory_ids[len(batch.records) : len(batch.records) + count]
        for trajectory_id in done:
            record = make_record(batch_id, trajectory_id, **changes)
            batch.records.append(encode_trajectory(record))
            batch.finished_ids.append(trajectory_id)
            self.emit("trajectory.finished", {"trajectory_id": trajectory_id, "status": record.status.value})
        if batch.over:
            self.emit("batch.finished", {"batch_id": batch_id})
        batch.changed.set()
        batch.changed = asyncio.Event()
        return done

    def emit(self, name: str, data: Mapping[str, Json]) -> None:
        """Something happened."""
        self._buffer.append(ServerEvent(self._next_event, name, data))
        self._next_event += 1
        self._emitted.set()
        self._emitted = asyncio.Event()

    # ----------------------------------------------------------------------------- the protocol

    async def submit(self, request: BatchRequest) -> tuple[BatchStatus, bool]:
        self._fail()
        if self.before_submit is not None:
            await self.before_submit()
        batch_id = request.batch_id or f"b{len(self.known)}"
        canonical = request.model_dump_json().encode()
        if (known := self.known.get(batch_id)) is not None:
            if known.request != canonical:
                raise Conflict(f"batch {batch_id} exists with another content")
            return known.status(), False
        for index, prompt in enumerate(request.prompts):
            environment = prompt.environment or request.environment or "math"
            if environment not in ENVIRONMENTS:
                where = f"prompts[{index}].environment" if prompt.environment else "environment"
                raise InvalidRequest(f"unknown environment {environment!r}", path=where)
            if len(str(prompt.task)) > MAX_TASK_CHARS:
                raise InvalidRequest("the prompt is longer than the context", path=f"prompts[{index}].task")
        ids = [
            f"{batch_id}-g{group}-t{sample}"
            for group in range(len(request.prompts))
            for sample in range(request.samples_per_prompt)
        ]
        prompts = [dict(prompt.task) for prompt in request.prompts]
        batch = ScriptedBatch(batch_id, canonical, ids, prompts, created_at=time.time())
        self.known[batch_id] = batch
        self.submissions += 1
        self.emit("batch.submitted", {"batch_id": batch_id, "total": len(ids)})
        return batch.status(), True

    async def batches(self, *, after: str | None, limit: int) -> BatchPage:
        self._fail()
        known = list(self.known.values())
        end = len(known) if after is None else min(_cursor(after), len(known))
        start = max(0, end - limit)
        page = [batch.status() for batch in reversed(known[start:end])]
        return BatchPage(page, str(start) if start > 0 else None)

    async def batch(self, batch_id: str) -> BatchStatus:
        self._fail()
        return self._batch(batch_id).status()

    async def cancel(self, batch_id: str) -> BatchStatus:
        self._fail()
        batch = self._batch(batch_id)
        if not batch.over:
            batch.cancelled = True
            reason = StopReason.CANCELLED
            self.finish(batch_id, len(batch.trajectory_ids), stop_reason=reason, status=reason.status)
        return batch.status()

    async def trajectories(
        self, batch_id: str, *, after: str | None, limit: int, wait_s: float
    ) -> TrajectoryPage:
        self._fail()
        batch = self._batch(batch_id)
        start = _cursor(after)
        self.polls_open += 1
        try:
            if len(batch.records) <= start and not batch.over and wait_s > 0:
                async with asyncio.timeout(wait_s):
                    await batch.changed.wait()
        except TimeoutError:
            pass
        finally:
            self.polls_open -= 1
        records = batch.records[start : start + limit]
        end = start + len(records)
        return TrajectoryPage(records, str(end), batch.over and end >= len(batch.records))

    async def trajectory(self, trajectory_id: str) -> bytes:
        self._fail()
        batch = self._batch_of(trajectory_id)
        if trajectory_id in batch.finished_ids:
            return batch.records[batch.finished_ids.index(trajectory_id)]
        return orjson.dumps({"trajectory_id": trajectory_id, "status": "pending"})

    async def explain(self, trajectory_id: str) -> Explanation:
        self._fail()
        batch = self._batch_of(trajectory_id)
        if trajectory_id in batch.finished_ids:
            return Explanation(trajectory_id, "finished", None, 0.0, "finished", None)
        position = batch.trajectory_ids.index(trajectory_id) - len(batch.records)
        return Explanation(
            trajectory_id, "queued", "w0", 0.5, f"w0 is saturated; {position} before it", position
        )

    async def explain_batch(self, batch_id: str) -> BatchExplanation:
        self._fail()
        batch = self._batch(batch_id)
        left = batch.trajectory_ids[len(batch.records) :]
        groups = [WaitingGroup("queued", "w0", len(left), 0.5, left[0], "w0 is saturated")] if left else []
        return BatchExplanation(batch_id, batch.status().state, len(left), "as told", groups)

    async def quarantine(self, *, after: str | None, limit: int) -> QuarantinePage:
        self._fail()
        start = _cursor(after)
        page = self.quarantined[start : start + limit]
        counts = Counter(finding.gate for entry in self.quarantined for finding in entry.findings)
        return QuarantinePage(counts, page, str(start + len(page)))

    async def events(self, after_id: int | None) -> AsyncIterator[ServerEvent]:
        self.streams_open += 1
        try:
            last = self._next_event - 1 if after_id is None else after_id
            if self._buffer and last + 1 < self._buffer[0].event_id:
                gap = self._buffer[0].event_id - 1
                yield ServerEvent(gap, "gap", {"missed": gap - last})
                last = gap
            while True:
                emitted = self._emitted
                for event in [event for event in self._buffer if event.event_id > last]:
                    last = event.event_id
                    yield event
                if last + 1 == self._next_event:
                    await emitted.wait()
        finally:
            self.streams_open -= 1

    async def workers(self) -> Sequence[WorkerStatus]:
        self._fail()
        return list(self.pool.values())

    async def add_worker(self, request: WorkerRequest) -> WorkerStatus:
        self._fail()
        if request.tp_degree > 8:
            raise Conflict("no room for a worker of this degree")
        return self._put_worker(f"w{len(self.pool)}", request.tp_degree, request.slots or 4)

    async def change_pool(self, request: PoolRequest) -> list[WorkerStatus]:
        self._fail()
        for number, degree in enumerate(request.pool.split("+"), start=len(self.pool)):
            self._put_worker(f"w{number}", int(degree), 4)
        return list(self.pool.values())

    async def remove_worker(self, worker_id: str) -> WorkerStatus:
        self._fail()
        if worker_id not in self.pool:
            raise NotFound(f"no worker {worker_id}")
        self.pool[worker_id] = replace(self.pool[worker_id], phase="draining")
        return self.pool[worker_id]

    async def pause(self) -> None:
        self._fail()
        self.paused = True

    async def resume(self) -> None:
        self._fail()
        self.paused = False

    async def update_weights(self, request: WeightsRequest) -> WeightsStatus:
        self._fail()
        raise UnsupportedByEngine("the embedded engine cannot change its weights")

    async def ready(self) -> bool:
        self._fail()
        return self.is_ready

    # ---------------------------------------------------------------------------------- inside

    def _fail(self) -> None:
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure

    def _batch(self, batch_id: str) -> ScriptedBatch:
        if batch_id not in self.known:
            raise NotFound(f"no batch {batch_id}")
        return self.known[batch_id]

    def _batch_of(self, trajectory_id: str) -> ScriptedBatch:
        for batch in self.known.values():
            if trajectory_id in batch.trajectory_ids:
                return batch
        raise NotFound(f"no trajectory {trajectory_id}")

    def _put_worker(self, worker_id: str, tp_degree: int, slots: int) -> WorkerStatus:
        status = WorkerStatus(worker_id, tp_degree, slots, "ready", 0, 0, 0, 0, [], None, None, None)
        self.pool[worker_id] = status
        return status


def _cursor(after: str | None) -> int:
    if after is None:
        return 0
    if not (after.isascii() and after.isdigit() and len(after) < 19):
        raise InvalidRequest("not a cursor of this batch", path="query.after")
    return int(after)
