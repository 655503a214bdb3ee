"""The coordinator put together from its parts, and everything that it owns while it runs.

One task group owns the workers, the agent loops and the housekeeping: if one of them fails for a reason of
Heddle's own, all end and the error comes out.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from heddle.agent.order import EngineLimits, LoopServices
from heddle.agent.ports import EngineCapabilities, Tokenizer
from heddle.allocation import SlotRule
from heddle.config import HeddleConfig
from heddle.control.events import PoolRequested
from heddle.control.plane import ControlPlane
from heddle.coordinator.broadcast import Broadcaster
from heddle.coordinator.control_loop import ControlLoop, DecisionLog
from heddle.coordinator.housekeeping import keep_house
from heddle.coordinator.ledger import DecodeLedger
from heddle.coordinator.memory import PredictorMemory
from heddle.coordinator.observer import RunWatcher
from heddle.coordinator.planners import Planners
from heddle.coordinator.pool import WorkerPool
from heddle.coordinator.prepare import PromptPreparer
from heddle.coordinator.provision import Capacity
from heddle.coordinator.runner import BatchRunner
from heddle.coordinator.service import Coordinator
from heddle.coordinator.telemetry import Telemetry
from heddle.coordinator.transfers import TransferDesk
from heddle.coordinator.watchdog import Watchdog
from heddle.coordinator.weights import WeightKeeper
from heddle.coordinator.weights_file import WeightsFile
from heddle.engines.memory_files import MemoryDirectory
from heddle.engines.supervisor import EngineLauncher
from heddle.engines.uninterrupted import uninterrupted
from heddle.environments.registry import EnvironmentRegistry
from heddle.errors import HeddleError
from heddle.garbage import uncollected
from heddle.metrics import Metrics
from heddle.planning.profile import Profile
from heddle.store.ports import Store
from heddle.tools.manager import ToolManager

if TYPE_CHECKING:
    from heddle.coordinator.estimates import ModelProcess

FINISHING_AT_ONCE = 32
"""Records built and committed at once: enough to commit in groups, few enough to bound memory."""


@dataclass(frozen=True, slots=True)
class EngineKit:
    """What one kind of engine brings along."""

    launcher: EngineLauncher
    tokenizer: Tokenizer
    capabilities: EngineCapabilities
    model: str
    """Names the weights, so that a resumed trajectory never goes on with others."""
    budget: int = field(default_factory=lambda: os.cpu_count() or 1)
    """What the pool is made from: GPUs, or threads of this machine's CPU."""
    exclusive: bool = False
    """No two workers share a unit of the budget: GPUs, or servers that run already."""
    weights_path: str | None = None
    """Where workers can read again the weights that they start with, if they can exchange them at all."""
    pool: str | None = None
    """The degrees of the workers, where the engine comes with them; else the configuration says."""
    transfer_tokens_per_s: float | None = None
    """How fast a prefix is likely to travel between two workers, where it does."""
    memory: MemoryDirectory | None = None
    """What workers share in memory, for as long as this object is held."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything that the composition root made."""

    config: HeddleConfig
    kit: EngineKit
    plane: ControlPlane
    event_log: DecisionLog
    store: Store
    tools: ToolManager
    environments: EnvironmentRegistry
    broadcaster: Broadcaster
    watcher: RunWatcher
    metrics: Metrics
    profile: Profile | None = None
    """Step times that workers are held to."""
    load_planners: Callable[[], None] | None = None
    """Loads the machine code that planning runs; ``None`` where it runs none."""


@asynccontextmanager
async def running_coordinator(parts: Parts) -> AsyncIterator[Coordinator]:
    """Start the pool, go on with open batches, and stop all of it at the end, in bounded time."""
    async with asyncio.TaskGroup() as tasks:
        control = ControlLoop(
            parts.plane, parts.event_log, time.monotonic, on_ignored=parts.metrics.event_ignored
        )
        pool = _pool(parts, control, tasks)
        transfers = TransferDesk(
            post=control.post, observe=parts.watcher.transfer_ended, now=time.monotonic, tasks=tasks
        )
        control.attach(pool, transfers)
        weights = WeightKeeper(
            pool,
            control,
            parts.broadcaster,
            WeightsFile(parts.config.data_dir / "weights.json"),
            base_path=parts.kit.weights_path,
        )
        pool.guard(weights)
        models = _models(parts, control)
        services = _services(parts, control, models)
        preparer = PromptPreparer(
            parts.environments, parts.kit.tokenizer, parts.kit.capabilities, services.engine.context_tokens
        )
        planners = Planners(parts.load_planners)
        runner = BatchRunner(
            services=services,
            store=parts.store,
            control=control,
            preparer=preparer,
            broadcaster=parts.broadcaster,
            metrics=parts.metrics,
            tasks=tasks,
            planners=planners,
            timeout_s=parts.config.rollouts.batch_timeout_s,
        )
        memory = PredictorMemory(parts.config, parts.plane.predictor)
        telemetry = Telemetry(
            pool,
            parts.metrics,
            parts.broadcaster,
            expected=parts.profile,
            profile_path=parts.config.data_dir / "profile.csv",
        )
        watchdog = Watchdog(parts.plane, runner, parts.tools.gauges)
        chores = [
            tasks.create_task(keep_house(parts.plane, parts.store, watchdog, parts.metrics, time.monotonic)),
            tasks.create_task(telemetry.run()),
            tasks.create_task(planners.run()),
            tasks.create_task(memory.run(runner.batch_finished)),
        ]
        if models is not None:
            chores.append(tasks.create_task(models.run()))
        try:
            await memory.restore(control)
            weights.announce()
            control.post(PoolRequested(parts.kit.budget))
            with uncollected():
                await runner.recover()
            yield Coordinator(
                services=services,
                store=parts.store,
                control=control,
                runner=runner,
                pool=pool,
                preparer=preparer,
                broadcaster=parts.broadcaster,
                weights=weights,
                telemetry=telemetry,
                capacity=_capacity(parts),
            )
        finally:
            for chore in chores:
                chore.cancel()
            await runner.close()
            await transfers.close()
            await pool.close()
            control.close()
            await uninterrupted(memory.save())


@contextmanager
def single_error() -> Iterator[None]:
    """A lone error of Heddle's own comes out as itself, not inside the group of a task group."""
    try:
        yield
    except BaseExceptionGroup as group:
        if len(group.exceptions) == 1 and isinstance(group.exceptions[0], HeddleError):
            raise group.exceptions[0] from group
        raise


def _pool(parts: Parts, control: ControlLoop, tasks: asyncio.TaskGroup) -> WorkerPool:
    return WorkerPool(
        parts.kit.launcher,
        log_dir=parts.config.data_dir / "logs",
        max_restarts=parts.config.engine.max_restarts,
        post=control.post,
        broadcaster=parts.broadcaster,
        metrics=parts.metrics,
        tasks=tasks,
        rng=random.Random(parts.config.decisions.seed),
    )


def _capacity(parts: Parts) -> Capacity:
    engine = parts.config.engine
    slots = SlotRule(engine.slots, engine.slots_per_gpu)
    return Capacity(parts.kit.budget, slots, parts.kit.exclusive)


def _models(parts: Parts, control: ControlLoop) -> ModelProcess | None:
    folder = parts.config.decisions.predictor_models
    if folder is None:
        return None
    # Imported late: most coordinators have no such models.
    from heddle.coordinator.estimates import ModelProcess
    from heddle.predict.models.catalogue import trained_models

    log_path = parts.config.data_dir / "logs" / "models.log"
    return ModelProcess(folder, trained_models(folder), log_path, control.post)


def _services(parts: Parts, control: ControlLoop, models: ModelProcess | None) -> LoopServices:
    engine = parts.config.engine
    return LoopServices(
        link=control,
        ledger=DecodeLedger(),
        tokenizer=parts.kit.tokenizer,
        tools=parts.tools,
        journal=parts.store,
        observer=parts.watcher,
        model=parts.kit.model,
        engine=EngineLimits(
            max_tool_retries=parts.config.tools.max_retries,
            context_tokens=engine.context_tokens,
            step_deadline_s=engine.step_deadline_s,
            token_deadline_s=engine.token_deadline_s,
            max_interruptions=engine.max_interruptions,
        ),
        now=time.monotonic,
        finishing=asyncio.Semaphore(FINISHING_AT_ONCE),
        reader=models,
        max_version_span=parts.config.rollouts.max_version_span,
    )
