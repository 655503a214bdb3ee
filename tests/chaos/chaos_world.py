"""A coordinator with everything around it, to which a schedule happens.

Real are the control plane, the agent loops, the supervisors, the coordinator's tasks and the journal's rules
(in memory, so that a thousand runs take a minute or two); fake are the tools, and the engines where nobody
brings others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from chaos_engine import PLANT_FAULTS, ChaosTools, FakePlant, Plant
from crash_child import CONTEXT_TOKENS, CrashingEnvironment
from schedule import Fault, Incident, Schedule

from heddle.api.schemas import BatchRequest, WorkerRequest
from heddle.app import plane_settings
from heddle.config import HeddleConfig, parse_config
from heddle.control.build import build_plane
from heddle.control.plane import ControlPlane
from heddle.coordinator.assembly import Parts, running_coordinator
from heddle.coordinator.broadcast import Broadcaster
from heddle.coordinator.observer import RunWatcher
from heddle.coordinator.service import Coordinator
from heddle.engines.supervisor import HealthCheck, RestartPacing, SupervisedWorker
from heddle.environments.registry import EnvironmentRegistry
from heddle.errors import Conflict, NotFound
from heddle.metrics import Metrics
from heddle.store.memory import MemoryStore
from heddle.tools.manager import ToolGauges, ToolManager
from heddle.types import EngineLoad, Json

TOOL_LIMIT_S = 0.03
OF_FAKES = HealthCheck(every_s=0.02, deadline_s=0.02)
PAUSE_S = 0.005
POLL_S = 10.0


@contextmanager
def hurry(health: HealthCheck = OF_FAKES) -> Iterator[None]:
    """Pauses between attempts in milliseconds, where a server takes seconds."""
    quick = partial(
        SupervisedWorker,
        pacing=RestartPacing(first_s=0.001, longest_s=0.01),
        health=health,
    )
    with (
        patch("heddle.coordinator.pool.SupervisedWorker", quick),
        patch("heddle.agent.generation.RETRY_BACKOFF_S", 0.001),
        patch("heddle.agent.generation.MAX_BACKOFF_S", 0.005),
        patch("heddle.agent.once.RETRY_BACKOFF_S", 0.001),
    ):
        yield


@dataclass(slots=True)
class Client:
    """Follows one batch by long polls; hangs up when cancelled, and comes back with its cursor."""

    batch_id: str
    records: list[bytes] = field(default_factory=list)
    cursor: str | None = None
    task: asyncio.Task[None] | None = None

    async def follow(self, coordinator: Coordinator) -> None:
        while True:
            page = await coordinator.trajectories(self.batch_id, after=self.cursor, limit=3, wait_s=POLL_S)
            self.records += page.records
            self.cursor = page.cursor
            if page.finished:
                return


@dataclass(slots=True)
class Life:
    """What one life of the coordinator left behind."""

    plane: ControlPlane
    lines: list[bytes] = field(default_factory=list)
    loads: list[EngineLoad] = field(default_factory=list)
    """Of the engines that were alive at its end, when all batches were over."""
    gauges: ToolGauges | None = None


@dataclass(slots=True)
class Surroundings:
    """What differs between worlds of fakes and of real engines."""

    plant: Plant = field(default_factory=FakePlant)
    token_deadline_s: float = 0.03
    context_tokens: int = CONTEXT_TOKENS
    deadline_s: float = 60.0
    """Longest that a world may take."""
    request: dict[str, Json] = field(default_factory=lambda: {"limits": {"max_steps": 6, "max_tokens": 4096}})
    """Of each batch, beside its prompts."""


class World:
    """Single use: ``await play()`` once, then look."""

    def __init__(self, schedule: Schedule, data_dir: Path, around: Surroundings) -> None:
        self.schedule = schedule
        self.store = MemoryStore()
        self.tools = ChaosTools()
        self.around = around
        self.plant = around.plant
        self.lives: list[Life] = []
        self.cancelled: set[str] = set()
        self.clients = [Client(f"b{number}") for number in range(schedule.batches)]
        self.config = _config(schedule, data_dir, around)
        self._incidents = deque(schedule.incidents)
        self._events = 0
        self._over = asyncio.Event()
        """This life of the coordinator is to end."""
        self._coordinator: Coordinator | None = None
        """While there is one that takes orders."""
        self._acts: set[asyncio.Task[None]] = set()

    async def play(self) -> None:
        """Lives of the coordinator, until all batches are over. Bounded."""
        async with asyncio.timeout(self.around.deadline_s):
            while not await self._live():
                pass

    # ------------------------------------------------------------------------------ one life

    async def _live(self) -> bool:
        """Whether all batches came to their end in it."""
        settings = plane_settings(self.config)
        life = Life(build_plane(settings))
        self.lives.append(life)
        self._over.clear()
        metrics, broadcaster = Metrics(), Broadcaster()
        tools = ToolManager(self.tools.backends(), concurrency=2, default_timeout_s=TOOL_LIMIT_S)
        parts = Parts(
            config=self.config,
            kit=self.plant.kit,
            plane=life.plane,
            event_log=self,
            store=self.store,
            tools=tools,
            environments=EnvironmentRegistry({"crashing": CrashingEnvironment()}),
            broadcaster=broadcaster,
            watcher=RunWatcher(metrics, broadcaster),
            metrics=metrics,
        )
        async with running_coordinator(parts) as coordinator:
            self._coordinator = coordinator
            done = await self._work(coordinator)
            if done:
                life.loads = await self.plant.loads()
                life.gauges = tools.gauges()
        await tools.close()
        return done

    async def _work(self, coordinator: Coordinator) -> bool:
        for client in self.clients:
            await coordinator.submit(self._batch(client.batch_id))
        ending = asyncio.create_task(self._over.wait())
        following = asyncio.create_task(self._follow_all(coordinator))
        await asyncio.wait({ending, following}, return_when=asyncio.FIRST_COMPLETED)
        done = following.done()
        self._coordinator = None  # whose operations would outlive it, and be told to its successor's log
        for task in (ending, following, *self._acts):
            task.cancel()
        await asyncio.gather(ending, following, *self._acts, return_exceptions=True)
        if done:
            following.result()
        return done

    async def _follow_all(self, coordinator: Coordinator) -> None:
        async with asyncio.TaskGroup() as group:
            for client in self.clients:
                group.create_task(self._follow(client, coordinator))

    async def _follow(self, client: Client, coordinator: Coordinator) -> None:
        """A client that hangs up is followed by one that goes on from its cursor."""
        while True:
            client.task = asyncio.create_task(client.follow(coordinator))
            try:
                await asyncio.wait({client.task})
            finally:
                client.task.cancel()
            if not client.task.cancelled():
                client.task.result()
                return

    def _batch(self, batch_id: str) -> BatchRequest:
        tasks = [{"task": {"say": f"Task {n}", "effects": ""}} for n in range(self.schedule.prompts)]
        return BatchRequest.model_validate(
            {
                "batch_id": batch_id,
                "environment": "crashing",
                "prompts": tasks,
                **self.around.request,
            }
        )

    # ------------------------------------------------------------------------------ what happens

    def append(self, line: bytes) -> None:
        """The decision log: an event was handled. Incidents strike right after it, never in the middle."""
        self.lives[-1].lines.append(line)
        self._events += 1
        while self._incidents and self._incidents[0].after_events <= self._events:
            asyncio.get_running_loop().call_soon(self._strike, self._incidents.popleft())

    def _strike(self, incident: Incident) -> None:
        fault, target = incident.fault, incident.target
        if fault in PLANT_FAULTS:
            self.plant.strike(fault, target)
            return
        match fault:
            case Fault.TOOL_CRASH | Fault.TOOL_HANG:
                self.tools.faults.append(fault)
            case Fault.CLIENT_LEAVES:
                leaving = self.clients[target % len(self.clients)].task
                if leaving is not None:
                    leaving.cancel()
            case Fault.RESTART:
                self._over.set()
            case _:
                self._act(self._operation(fault, target))

    def _operation(self, fault: Fault, target: int) -> Callable[[Coordinator], Coroutine[Any, Any, None]]:
        async def operate(coordinator: Coordinator) -> None:
            match fault:
                case Fault.CANCEL:
                    batch_id = self.clients[target % len(self.clients)].batch_id
                    with suppress(NotFound):
                        await coordinator.cancel(batch_id)
                        self.cancelled.add(batch_id)
                case Fault.PAUSE:
                    await coordinator.pause()
                    await asyncio.sleep(PAUSE_S)
                    await coordinator.resume()
                case Fault.ADD_WORKER:
                    await coordinator.add_worker(WorkerRequest(tp_degree=1))
                case _:
                    await coordinator.add_worker(WorkerRequest(tp_degree=1))
                    workers = await coordinator.workers()
                    with suppress(NotFound):
                        await coordinator.remove_worker(workers[target % len(workers)].worker_id)

        return operate

    def _act(self, operate: Callable[[Coordinator], Coroutine[Any, Any, None]]) -> None:
        coordinator = self._coordinator
        if coordinator is None:
            return

        async def acting() -> None:
            with suppress(Conflict):
                await operate(coordinator)

        task = asyncio.create_task(acting())
        self._acts.add(task)
        task.add_done_callback(self._acts.discard)


def _config(schedule: Schedule, data_dir: Path, around: Surroundings) -> HeddleConfig:
    return parse_config(
        {
            "data_dir": data_dir,
            "engine": {
                "kind": "fake",
                "pool": "+".join(["1"] * schedule.workers),
                "slots": schedule.slots,
                "context_tokens": around.context_tokens,
                "token_deadline_s": around.token_deadline_s,
                "max_interruptions": 50,
                "max_restarts": 100,
            },
            "decisions": {"scheduler": schedule.scheduler},
        }
    )
