"""What the REST surface needs of the coordinator: one protocol and the values it returns."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from heddle.api.schemas import BatchRequest, PoolRequest, WeightsRequest, WorkerRequest
from heddle.types import Json


@dataclass(frozen=True, slots=True)
class BatchStatus:
    """``GET /v1/batches/{id}``. Times are seconds since the epoch; durations are seconds."""

    batch_id: str
    state: str
    """running, finished, cancelled (cancelled once every trajectory has ended)."""
    total: int
    finished: int
    by_status: Mapping[str, int]
    """Finished trajectories by final status."""
    by_phase: Mapping[str, int]
    """Open trajectories by phase of the control plane."""
    sampled_tokens: int
    created_at: float
    finished_at: float | None
    eta_s: float | None
    """Seconds until the last trajectory should finish; null while there is nothing to judge by."""


@dataclass(frozen=True, slots=True)
class TrajectoryPage:
    """Finished trajectories in the order in which they finished."""

    records: Sequence[bytes]
    """Each one JSON object."""
    cursor: str
    """Pass as ``after`` to go on; it also acknowledges what came before."""
    finished: bool
    """True where the batch is over and nothing follows this page."""


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker, as the control plane and its supervisor see it."""

    worker_id: str
    tp_degree: int
    slots: int
    phase: str
    running: int
    waiting: int
    resident: int
    restarts: int
    queue: Sequence[str]
    """Waiting trajectories in the order in which they will run (at most 100)."""
    url: str | None
    log_path: str | None
    pid: int | None
    weight_version: int | None = None
    """Of the weights that it has loaded; null while it does not run."""
    withheld: str | None = None
    """Why it serves nothing although it runs."""
    step_base_s: float | None = None
    """Seconds of a decoding step apart from its batch; null where its engine does not tell."""
    step_per_generation_s: float | None = None
    """Seconds that each running generation adds to a step."""
    pace_ratio: float | None = None
    """Its step time over the one expected, lately."""
    behind: bool = False
    """It has been much slower than expected for a while."""


@dataclass(frozen=True, slots=True)
class WeightsStatus:
    """``POST /v1/weights``."""

    status: str
    """updated, or unchanged where these weights served already."""
    version: int
    """Of the weights that serve now."""
    workers: Sequence[str]
    """Those that were given them."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """``GET /v1/trajectories/{id}/explain``: what it waits for."""

    trajectory_id: str
    phase: str
    worker_id: str | None
    since_s: float
    reason: str
    """A sentence: saturated, behind whom, in which tool, no worker ready, dispatch paused, finished."""
    queue_position: int | None
    """0 is next; null where it does not queue."""


@dataclass(frozen=True, slots=True)
class WaitingGroup:
    """Open trajectories of a batch that stand at the same place."""

    phase: str
    worker_id: str | None
    trajectories: int
    longest_s: float
    """Seconds since the first of them came there."""
    example: str
    """That one's id."""
    reason: str
    """What that one waits for."""


@dataclass(frozen=True, slots=True)
class BatchExplanation:
    """``GET /v1/batches/{id}/explain``: what the batch waits for."""

    batch_id: str
    state: str
    open: int
    summary: str
    """A sentence."""
    waiting: Sequence[WaitingGroup]
    """The longest wait first."""


@dataclass(frozen=True, slots=True)
class BatchPage:
    """Batches, the latest first."""

    batches: Sequence[BatchStatus]
    cursor: str | None
    """Pass as ``after`` for older ones; null where there are none."""


@dataclass(frozen=True, slots=True)
class GateFinding:
    """What an admission gate found."""

    gate: str
    message: str


@dataclass(frozen=True, slots=True)
class QuarantinedTrajectory:
    """A trajectory whose record was refused; it is ``failed`` in its batch."""

    trajectory_id: str
    batch_id: str
    findings: Sequence[GateFinding]


@dataclass(frozen=True, slots=True)
class QuarantinePage:
    """``GET /v1/quarantine``, in the order of refusal."""

    counts: Mapping[str, int]
    """Refused records by gate, over the whole store."""
    trajectories: Sequence[QuarantinedTrajectory]
    cursor: str
    """Pass as ``after`` to go on."""


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One entry of ``GET /v1/events``; ``event_id`` grows by one and is what Last-Event-ID carries."""

    event_id: int
    name: str
    """batch.submitted, batch.finished, trajectory.finished, worker.ready, worker.lost, ..."""
    data: Mapping[str, Json]


class RolloutService(Protocol):
    """The coordinator as its API sees it. Raises ``InvalidRequest``, ``NotFound``, ``Conflict``."""

    async def submit(self, request: BatchRequest) -> tuple[BatchStatus, bool]:
        """Accept a batch wholly or not at all; the flag is False where it existed already.

        The same id with a different content is a ``Conflict``.
        """
        ...

    async def batches(self, *, after: str | None, limit: int) -> BatchPage:
        """The latest first; ``after`` is the cursor of the page before."""
        ...

    async def batch(self, batch_id: str) -> BatchStatus: ...

    async def cancel(self, batch_id: str) -> BatchStatus: ...

    async def trajectories(
        self, batch_id: str, *, after: str | None, limit: int, wait_s: float
    ) -> TrajectoryPage:
        """Finished trajectories after the cursor; waits up to ``wait_s`` where there is none yet."""
        ...

    async def trajectory(self, trajectory_id: str) -> bytes:
        """The finished record as JSON, or ``{"trajectory_id", "status": "pending"}`` while open."""
        ...

    async def explain(self, trajectory_id: str) -> Explanation: ...

    async def explain_batch(self, batch_id: str) -> BatchExplanation: ...

    async def quarantine(self, *, after: str | None, limit: int) -> QuarantinePage: ...

    def events(self, after_id: int | None) -> AsyncIterator[ServerEvent]:
        """Everything after ``after_id`` that is still in the buffer, then what comes.

        Where older events were dropped from the buffer, first an event named ``gap``.
        """
        ...

    async def workers(self) -> Sequence[WorkerStatus]: ...

    async def add_worker(self, request: WorkerRequest) -> WorkerStatus: ...

    async def change_pool(self, request: PoolRequest) -> Sequence[WorkerStatus]:
        """Make the pool the one that is spelled out; returns its workers, those that leave included.

        Workers that fit stay, the others are drained. Raises ``InvalidRequest`` where it does not fit.
        """
        ...

    async def remove_worker(self, worker_id: str) -> WorkerStatus:
        """Drain it; what is queued there goes elsewhere."""
        ...

    async def pause(self) -> None:
        """Start no further generation; running ones end by themselves."""
        ...

    async def resume(self) -> None: ...

    async def update_weights(self, request: WeightsRequest) -> WeightsStatus:
        """Give all workers new weights, or none. Raises ``UnsupportedByEngine`` where the engines cannot.

        ``Conflict`` for a version that is not newer, ``EngineUnavailable`` after a rollback.
        """
        ...

    async def ready(self) -> bool:
        """Whether at least one worker can generate."""
        ...
