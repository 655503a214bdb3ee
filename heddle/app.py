"""The composition root: with ``engine_kits`` the only place that names concrete classes.

Everything is acquired in one order and released in the reverse: store, event log, tools, then one task
group that owns the workers, the agent loops and the housekeeping.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType

import structlog

from heddle.config import DecisionsConfig, HeddleConfig
from heddle.control.build import PlaneSettings, build_plane, kernel_loader
from heddle.coordinator.assembly import EngineKit, Parts, running_coordinator, single_error
from heddle.coordinator.broadcast import Broadcaster
from heddle.coordinator.observer import RunWatcher
from heddle.coordinator.service import Coordinator
from heddle.engine_kits import engine_kit
from heddle.environments.registry import EnvironmentRegistry, build_registry
from heddle.errors import ConfigError, InvalidRequest
from heddle.eventlog import EventLogWriter
from heddle.garbage import collecting_at_rest
from heddle.metrics import Metrics
from heddle.planning.profile import Profile
from heddle.planning.profile_csv import ProfileTable
from heddle.planning.shipped import shipped_profiles
from heddle.profiling.files import read_profiles
from heddle.store.finished import STORE_NAME
from heddle.store.sqlite import open_store
from heddle.tools.manager import ToolManager
from heddle.tools.sandbox import (
    Isolation,
    PythonSandbox,
    SandboxDirectories,
    SandboxLimits,
    detect_isolation,
)

log = structlog.get_logger(__name__)


def plane_settings(
    config: HeddleConfig, pool: str | None = None, transfer_tokens_per_s: float | None = None
) -> PlaneSettings:
    """What the control plane is built from, and what heads its event log.

    ``pool`` takes the place of the configured one, where the engine comes with its workers;
    ``transfer_tokens_per_s`` is what is known of the engine, where nothing is configured.
    """
    decisions = config.decisions
    return PlaneSettings(
        scheduler=decisions.scheduler,
        placer=decisions.placer,
        allocator=decisions.allocator,
        migration=decisions.migration,
        predictor=decisions.predictor,
        pool=pool or config.engine.pool,
        slots=config.engine.slots,
        slots_per_gpu=config.engine.slots_per_gpu,
        profile=_profile(decisions),
        seed=decisions.seed,
        preemption=decisions.preemption,
        preempt_margin_tokens=decisions.preempt_margin_tokens,
        max_preemptions_per_step=decisions.max_preemptions_per_step,
        ageing_per_s=decisions.ageing_per_s,
        kv_guard=decisions.kv_guard,
        predictor_error=decisions.predictor_error,
        transfer_tokens_per_s=decisions.transfer_tokens_per_s or transfer_tokens_per_s,
        transfer_deadline_s=decisions.transfer_deadline_s,
        reshaper=decisions.reshaper,
        worker_start_s=decisions.worker_start_s,
    )


def _profile_table(decisions: DecisionsConfig) -> ProfileTable | None:
    """The step times of which planning takes some, if the configuration names any. Raises ``ConfigError``."""
    path = decisions.profile
    if path is None and decisions.profile_gpu is None and decisions.profile_model is None:
        return None
    if path is None:
        return shipped_profiles()
    try:
        return read_profiles(path)
    except InvalidRequest as exc:
        raise ConfigError(f"decisions.profile: {path} {exc.message}") from exc


def _profile(decisions: DecisionsConfig) -> Profile | None:
    table = _profile_table(decisions)
    return None if table is None else table.select(decisions.profile_gpu, decisions.profile_model)


async def _rehearsed(config: HeddleConfig, settings: PlaneSettings, kit: EngineKit) -> PlaneSettings:
    """The settings with what a rehearsal chose, where one is configured. Raises ``ConfigError``."""
    if config.decisions.rehearse is None:
        return settings
    from heddle.rehearsal.start import rehearsed  # imported late: it loads the simulator

    table = _profile_table(config.decisions)
    if table is None:
        raise ConfigError("decisions.rehearse needs decisions.profile, or a GPU and model of the shipped one")
    return await rehearsed(config, settings, table, kit.budget, kit.pool)


@asynccontextmanager
async def open_coordinator(
    config: HeddleConfig,
    metrics: Metrics | None = None,
    kit: EngineKit | None = None,
    isolation: Isolation | None = None,
) -> AsyncIterator[Coordinator]:
    """A running coordinator: workers coming up, open batches of an earlier process going on.

    ``kit`` takes the place of the engine that the configuration names; ``isolation`` is what a probe of
    ``config.tools.isolation`` found, where it was probed already. Leaving the block stops everything
    that was started; open trajectories stay in the journal. Raises ``ConfigError`` and ``StoreError``.
    """
    async with AsyncExitStack() as stack:
        stack.enter_context(single_error())
        probe = await stack.enter_async_context(_probed(config, isolation))
        metrics = metrics or Metrics()
        kit = kit or await engine_kit(config)
        environments = build_registry(config.environments)
        config.data_dir.mkdir(parents=True, exist_ok=True)
        settings = plane_settings(config, kit.pool, kit.transfer_tokens_per_s)
        if kit.pool is not None and settings.reshaper != "none":
            raise ConfigError("decisions.reshaper: servers that run already can be given no other shape")
        settings = await _rehearsed(config, settings, kit)
        store = await stack.enter_async_context(open_store(config.data_dir / STORE_NAME))
        event_log = stack.enter_context(EventLogWriter(_event_log_path(config.data_dir), settings))
        broadcaster = Broadcaster()
        watcher = RunWatcher(metrics, broadcaster)
        tools = await asyncio.to_thread(build_tools, config, environments, watcher, await probe)
        stack.push_async_callback(tools.close)
        parts = Parts(
            config=config,
            kit=kit,
            plane=build_plane(settings),
            event_log=event_log,
            store=store,
            tools=tools,
            environments=environments,
            broadcaster=broadcaster,
            watcher=watcher,
            metrics=metrics,
            profile=settings.profile,
            load_planners=kernel_loader(settings),
        )
        yield await stack.enter_async_context(running_coordinator(parts))


@asynccontextmanager
async def _probed(config: HeddleConfig, known: Isolation | None) -> AsyncIterator[asyncio.Future[Isolation]]:
    """The isolation that there is, found out by processes of its own while others go on, where it is not
    ``known``."""
    loop = asyncio.get_running_loop()
    probe: asyncio.Future[Isolation] = loop.create_future()
    if known is not None:
        probe.set_result(known)
    else:
        probe = loop.run_in_executor(None, detect_isolation, config.tools.isolation)
    try:
        yield probe
    finally:
        await asyncio.wait({probe})


def build_tools(
    config: HeddleConfig,
    environments: EnvironmentRegistry,
    watcher: RunWatcher,
    isolation: Isolation,
) -> ToolManager:
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


@asynccontextmanager
async def _imported(module: str) -> AsyncIterator[asyncio.Future[ModuleType]]:
    """A module that is loaded beside the event loop, because it is large and others can go on without it."""
    loading = asyncio.get_running_loop().run_in_executor(None, import_module, module)
    try:
        yield loading
    finally:
        await asyncio.wait({loading})


async def serve(
    config: HeddleConfig, isolation: Isolation, *, on_started: Callable[[str], None], stop: asyncio.Event
) -> None:
    """Run the coordinator and its REST surface until ``stop`` is set.

    Inside of ``heddle.garbage.young_only``, else full collections hold it up.
    """
    metrics = Metrics()
    async with AsyncExitStack() as stack:
        surface = await stack.enter_async_context(_imported("heddle.api.app"))
        coordinator = await stack.enter_async_context(open_coordinator(config, metrics, isolation=isolation))
        await stack.enter_async_context(collecting_at_rest(coordinator.at_rest))
        await surface
        from heddle.api.app import ApiServer, make_app

        app = make_app(
            coordinator,
            token=config.server.token,
            max_body_bytes=config.server.max_body_bytes,
            metrics=metrics,
        )
        server = ApiServer(app, host=config.server.host, port=config.server.port)
        await stack.enter_async_context(server)
        on_started(server.url)
        await stop.wait()


def _event_log_path(data_dir: Path) -> Path:
    """A fresh name for every start: a log belongs to one control plane."""
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    return data_dir / "events" / f"{stamp}-{time.time_ns() % 1_000_000_000:09d}-{os.getpid()}.jsonl"
