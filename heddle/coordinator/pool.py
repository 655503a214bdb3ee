"""The workers that are up or coming up: carries out worker orders, reports what becomes of them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from heddle.agent.ports import Engine
from heddle.control.events import (
    Event,
    GenerationInterrupted,
    StepGenerated,
    WorkerLost,
    WorkerReady,
    WorkerStopped,
)
from heddle.coordinator.broadcast import Broadcaster
from heddle.engines.breaker import CircuitBreaker
from heddle.engines.supervisor import EngineLauncher, RunningWorker, SupervisedWorker
from heddle.errors import EngineError
from heddle.metrics import Metrics
from heddle.types import InterruptReason, Json, WorkerId, WorkerSpec


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    """What a worker is to an operator."""

    spec: WorkerSpec
    restarts: int
    url: str | None
    pid: int | None
    log_path: Path
    weight_version: int | None
    withheld: str | None
    """Why it serves nothing although it runs."""


class Admission(Protocol):
    """Decides whether a worker that came up may serve."""

    def admits(self, engine: Engine) -> bool: ...

    async def prepare(self, engine: Engine) -> None:
        """Return when it may. Raises ``EngineError`` where it cannot be made to."""
        ...


@dataclass(slots=True)
class _Member:
    worker: SupervisedWorker
    spec: WorkerSpec
    task: asyncio.Task[None]
    running: RunningWorker | None = None
    preparing: asyncio.Task[None] | None = None
    """While it runs and may not serve yet."""


class WorkerPool:
    """Implements ``WorkerActions`` towards the control plane and ``WorkerListener`` towards supervisors.

    Owns one supervising task per worker; all end within ``close``.
    """

    def __init__(
        self,
        launcher: EngineLauncher,
        *,
        log_dir: Path,
        max_restarts: int,
        post: Callable[[Event], None],
        broadcaster: Broadcaster,
        metrics: Metrics,
        tasks: asyncio.TaskGroup,
        rng: random.Random,
    ) -> None:
        self._launcher = launcher
        self._log_dir = log_dir
        self._max_restarts = max_restarts
        self._post = post
        self._broadcaster = broadcaster
        self._metrics = metrics
        self._tasks = tasks
        self._rng = rng
        self._breaker = CircuitBreaker()
        self._members: dict[WorkerId, _Member] = {}
        self._admission: Admission | None = None

    def guard(self, admission: Admission) -> None:
        """Name who decides which workers may serve; once, before the first worker."""
        self._admission = admission

    # ---------------------------------------------------------------------------- WorkerActions

    def start(self, spec: WorkerSpec) -> None:
        worker = SupervisedWorker(
            spec,
            self._launcher,
            self,
            log_dir=self._log_dir,
            max_restarts=self._max_restarts,
            rng=self._rng,
        )
        task = self._tasks.create_task(worker.run(), name=f"worker {spec.worker_id}")
        self._members[spec.worker_id] = _Member(worker, spec, task)

    def stop(self, worker_id: WorkerId) -> None:
        member = self._members.get(worker_id)
        if member is None:
            return
        if member.task.done():  # it was given up, so nobody is left to report that it stopped
            del self._members[worker_id]
            self._metrics.worker_gone(worker_id)
        else:
            member.worker.request_stop()

    def engine(self, worker_id: WorkerId) -> tuple[Engine, int]:
        member = self._members[worker_id]
        assert member.running is not None, f"the control plane dispatched to {worker_id}, which is not up"
        return member.running.engine, member.spec.tp_degree

    def observe(self, event: Event) -> None:
        """Count how generations end; a worker that only fails is replaced, however healthy it says it is."""
        match event:
            case StepGenerated(worker_id=worker_id):
                self._breaker.succeeded(worker_id)
            case GenerationInterrupted(worker_id=worker_id, reason=reason):
                if reason is not InterruptReason.PREEMPTED:
                    self._generation_failed(worker_id, reason)
            case _:
                pass

    def _generation_failed(self, worker_id: WorkerId, reason: InterruptReason) -> None:
        self._metrics.generation_failed(reason)
        member = self._members.get(worker_id)
        if member is None or member.running is None:
            return
        if self._breaker.failed(worker_id, member.spec.slots):
            self._metrics.circuit_opened(worker_id)
            why = f"replaced: its generations fail, one after the other, the last with {reason}"
            member.worker.request_restart(why)

    # --------------------------------------------------------------------------- WorkerListener

    def worker_ready(self, spec: WorkerSpec, worker: RunningWorker) -> None:
        member = self._members[spec.worker_id]
        member.running = worker
        self._breaker.closed(spec.worker_id)
        if member.worker.restarts:
            self._metrics.worker_restarted(spec.worker_id)
        if self._admission is None or self._admission.admits(worker.engine):
            self._admit(spec, worker)
            return
        self._publish("worker.withheld", spec.worker_id, weight_version=worker.engine.weight_version)
        preparation = self._prepare(self._admission, member, worker)
        member.preparing = self._tasks.create_task(preparation, name=f"weights of {spec.worker_id}")

    async def _prepare(self, admission: Admission, member: _Member, worker: RunningWorker) -> None:
        try:
            await admission.prepare(worker.engine)
        except EngineError as exc:
            member.worker.request_restart(f"did not take the weights that serve: {exc}")
        else:
            self._admit(member.spec, worker)
        member.preparing = None

    def _admit(self, spec: WorkerSpec, worker: RunningWorker) -> None:
        slots = min(spec.slots, worker.slots or spec.slots)
        capacities = worker.kv_capacity_tokens, worker.prefix_capacity_tokens
        shared = worker.engine.capabilities.shared_prefixes
        self._post(WorkerReady(spec.worker_id, slots, *capacities, shared))
        self._publish("worker.ready", spec.worker_id, tp_degree=spec.tp_degree, slots=slots)

    def worker_lost(self, worker_id: WorkerId, reason: str, will_restart: bool) -> None:
        self._post(WorkerLost(worker_id, reason, will_restart))
        member = self._members[worker_id]
        member.running = None
        _end_preparation(member)
        self._publish("worker.lost", worker_id, reason=reason, will_restart=will_restart)

    def worker_stopped(self, worker_id: WorkerId) -> None:
        self._post(WorkerStopped(worker_id))
        member = self._members.pop(worker_id, None)
        if member is not None:
            _end_preparation(member)
        self._breaker.closed(worker_id)
        self._metrics.worker_gone(worker_id)
        self._publish("worker.stopped", worker_id)

    # -------------------------------------------------------------------------------- WeightPool

    def engines(self) -> dict[WorkerId, Engine]:
        members = self._members.items()
        return {worker_id: m.running.engine for worker_id, m in members if m.running is not None}

    def tp_degree(self, worker_id: WorkerId) -> int:
        return self._members[worker_id].spec.tp_degree

    def restart(self, worker_id: WorkerId, reason: str) -> None:
        member = self._members.get(worker_id)
        if member is not None:
            member.worker.request_restart(reason)

    # ---------------------------------------------------------------------------------- queries

    def process(self, worker_id: WorkerId) -> WorkerProcess | None:
        member = self._members.get(worker_id)
        if member is None:
            return None
        return WorkerProcess(
            spec=member.spec,
            restarts=member.worker.restarts,
            url=member.running.url if member.running else None,
            pid=member.running.pid if member.running else None,
            log_path=self._log_dir / f"{worker_id}.log",
            weight_version=member.running.engine.weight_version if member.running else None,
            withheld="it has not loaded the weights that serve" if member.preparing else None,
        )

    async def close(self) -> None:
        """Stop every worker, all at once; each supervisor bounds its own stop."""
        members = self._members.values()
        tasks = [member.task for member in members]
        tasks += [member.preparing for member in members if member.preparing is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _publish(self, name: str, worker_id: WorkerId, **data: Json) -> None:
        self._broadcaster.publish(name, {"worker_id": worker_id, **data})


def _end_preparation(member: _Member) -> None:
    if member.preparing is not None:
        member.preparing.cancel()
        member.preparing = None
