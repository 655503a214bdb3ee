"""The composition root: the only place that names concrete classes.

Everything is acquired in one order and released in the reverse: store, event log, tools, then one task
group that owns the workers, the agent loops and the housekeeping.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from heddle.agent.order import EngineLimits, LoopServices
from heddle.agent.ports import EngineCapabilities, Tokenizer
from heddle.api.app import ApiServer, make_app
from heddle.config import HeddleConfig
from heddle.control.build import PlaneSettings, build_plane
from heddle.control.events import PoolRequested
from heddle.coordinator.broadcast import Broadcaster
from heddle.coordinator.control_loop import ControlLoop
from heddle.coordinator.housekeeping import keep_house
from heddle.coordinator.ledger import DecodeLedger
from heddle.coordinator.observer import RunWatcher
from heddle.coordinator.pool import WorkerPool
from heddle.coordinator.prepare import PromptPreparer
from heddle.coordinator.runner import BatchRunner
from heddle.coordinator.service import Coordinator
from heddle.engines.embedded.adapter import EmbeddedEngine
from heddle.engines.embedded.launcher import EmbeddedLauncher
from heddle.engines.embedded.model import ensure_model
from heddle.engines.fake import FakeEngine, FakeLauncher, FakeModel
from heddle.engines.supervisor import EngineLauncher
from heddle.environments.registry import EnvironmentRegistry, build_registry
from heddle.eventlog import EventLogWriter
from heddle.metrics import Metrics
from heddle.store.sqlite import open_store
from heddle.text.byte_tokenizer import TURN_END, ByteTokenizer
from heddle.text.tokenizer import load_tokenizer
from heddle.tools.manager import ToolManager
from heddle.tools.sandbox import PythonSandbox, SandboxDirectories, SandboxLimits, detect_isolation

log = structlog.get_logger(__name__)

FINISHING_AT_ONCE = 32
"""Enough for the store to commit in groups, few enough to bound memory."""


@dataclass(frozen=True, slots=True)
class EngineKit:
    """What one kind of engine brings along."""

    launcher: EngineLauncher
    tokenizer: Tokenizer
    capabilities: EngineCapabilities


async def engine_kit(config: HeddleConfig) -> EngineKit:
    """The engine that the configuration names. Raises ``ConfigError``."""
    engine = config.engine
    if engine.kind == "fake":
        fake = FakeModel(vocabulary=256, end_of_turn_id=TURN_END, context_tokens=engine.context_tokens)
        return EngineKit(FakeLauncher(model=fake), ByteTokenizer(), FakeEngine.capabilities)
    model = await asyncio.to_thread(ensure_model, engine.model)
    tokenizer = await asyncio.to_thread(load_tokenizer, model)
    launcher = EmbeddedLauncher(
        model, context_tokens=engine.context_tokens, ready_timeout_s=engine.ready_timeout_s
    )
    return EngineKit(launcher, tokenizer, EmbeddedEngine.capabilities)


def plane_settings(config: HeddleConfig) -> PlaneSettings:
    """What the control plane is built from, and what heads its event log."""
    decisions = config.decisions
    return PlaneSettings(
        scheduler=decisions.scheduler,
        placer=decisions.placer,
        allocator=decisions.allocator,
        migration=decisions.migration,
        predictor=decisions.predictor,
        pool=config.engine.pool,
        slots=config.engine.slots,
        seed=decisions.seed,
    )


@asynccontextmanager
async def open_coordinator(
    config: HeddleConfig, metrics: Metrics | None = None, kit: EngineKit | None = None
) -> AsyncIterator[Coordinator]:
    """A running coordinator: workers coming up, open batches of an earlier process going on.

    ``kit`` takes the place of the engine that the configuration names. Leaving the block stops everything
    that was started; open trajectories stay in the journal. Raises ``ConfigError`` and ``StoreError``.
    """
    metrics = metrics or Metrics()
    kit = kit or await engine_kit(config)
    environments = build_registry(config.environments)
    async with AsyncExitStack() as stack:
        config.data_dir.mkdir(parents=True, exist_ok=True)
        store = await stack.enter_async_context(open_store(config.data_dir / "heddle.db"))
        log_path = _event_log_path(config.data_dir)
        event_log = stack.enter_context(EventLogWriter(log_path, plane_settings(config)))
        broadcaster = Broadcaster()
        watcher = RunWatcher(metrics, broadcaster)
        tools = await asyncio.to_thread(build_tools, config, environments, watcher)
        stack.push_async_callback(tools.close)
        tasks = await stack.enter_async_context(asyncio.TaskGroup())

        control = ControlLoop(
            build_plane(plane_settings(config)),
            event_log,
            time.monotonic,
            on_ignored=lambda reason: metrics.event_ignored(reason),
        )
        pool = WorkerPool(
            kit.launcher,
            log_dir=config.data_dir / "logs",
            max_restarts=config.engine.max_restarts,
            post=control.post,
            broadcaster=broadcaster,
            metrics=metrics,
            tasks=tasks,
            rng=random.Random(config.decisions.seed),
        )
        control.attach(pool)
        services = LoopServices(
            link=control,
            ledger=DecodeLedger(),
            tokenizer=kit.tokenizer,
            tools=tools,
            journal=store,
            observer=watcher,
            engine=EngineLimits(
                context_tokens=config.engine.context_tokens,
                step_deadline_s=config.engine.step_deadline_s,
                token_deadline_s=config.engine.token_deadline_s,
                max_interruptions=config.engine.max_interruptions,
            ),
            now=time.monotonic,
            finishing=asyncio.Semaphore(FINISHING_AT_ONCE),
        )
        preparer = PromptPreparer(environments, kit.tokenizer, kit.capabilities, config.engine.context_tokens)
        runner = BatchRunner(
            services=services,
            store=store,
            control=control,
            preparer=preparer,
            broadcaster=broadcaster,
            metrics=metrics,
            tasks=tasks,
        )
        coordinator = Coordinator(
            services=services,
            store=store,
            control=control,
            runner=runner,
            pool=pool,
            preparer=preparer,
            broadcaster=broadcaster,
            default_slots=config.engine.slots,
        )
        housekeeping = tasks.create_task(keep_house(control.plane, metrics, time.monotonic))
        try:
            control.post(PoolRequested(os.cpu_count() or 1))
            await runner.recover()
            yield coordinator
        finally:
            housekeeping.cancel()
            await runner.close()
            await pool.close()


def build_tools(config: HeddleConfig, environments: EnvironmentRegistry, watcher: RunWatcher) -> ToolManager:
    """The Tool Manager with the sandbox and whatever backends the environments bring."""
    limits = SandboxLimits(
        cpu_s=config.tools.cpu_s,
        memory_bytes=config.tools.memory_bytes,
        output_bytes=config.tools.output_bytes,
        file_bytes=config.tools.file_bytes,
        max_processes=config.tools.max_processes,
    )
    directories = SandboxDirectories(config.data_dir / "sandboxes")
    directories.reap()
    isolation = detect_isolation(config.tools.isolation)
    log.info("sandbox", isolation=isolation.mode, complete=isolation.complete, detail=isolation.detail)
    sandbox = PythonSandbox(limits=limits, isolation=isolation, directories=directories)
    tools = ToolManager(
        {sandbox.name: sandbox},
        concurrency=config.tools.concurrency,
        default_timeout_s=config.tools.timeout_s,
        observe=watcher.tool_finished,
    )
    for backend in environments.backends():
        tools.register(backend)
    return tools


async def serve(config: HeddleConfig, *, on_started: Callable[[str], None], stop: asyncio.Event) -> None:
    """Run the coordinator and its REST surface until ``stop`` is set."""
    metrics = Metrics()
    async with open_coordinator(config, metrics) as coordinator:
        app = make_app(
            coordinator,
            token=config.server.token,
            max_body_bytes=config.server.max_body_bytes,
            metrics=metrics,
        )
        async with ApiServer(app, host=config.server.host, port=config.server.port) as server:
            on_started(server.url)
            await stop.wait()


def _event_log_path(data_dir: Path) -> Path:
    """A fresh name for every start: a log belongs to one control plane."""
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    return data_dir / "events" / f"{stamp}-{time.time_ns() % 1_000_000_000:09d}-{os.getpid()}.jsonl"
