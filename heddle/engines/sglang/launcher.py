"""Starts SGLang servers and stops them."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heddle.engines.process import end_process, obituary, open_log
from heddle.engines.sglang.adapter import SGLangEngine, SGLangSettings
from heddle.engines.sglang.client import SGLangClient
from heddle.engines.sglang.command import DeviceKind, LaunchPlan, ServerTemplate, plan_launch
from heddle.engines.sglang.leases import Lease, Leases
from heddle.engines.sglang.readiness import await_ready, check_facts
from heddle.engines.uninterrupted import uninterrupted
from heddle.errors import EngineError, EngineUnavailable
from heddle.types import WorkerSpec

ABORT_TIMEOUT_S = 5.0
MEMORY_POLL_S = 0.5

MemoryInUse = Callable[[Sequence[int]], Mapping[int, float]]
"""From indices of GPUs to the shares of their memory that are in use."""


@dataclass(frozen=True, slots=True)
class LaunchRules:
    """How patiently servers are started and stopped."""

    ready_timeout_s: float
    """From the start of the process to the first answer that it is ready."""
    at_once: int = 2
    """Servers that come up at the same time: each reads the weights and compiles kernels."""
    free_share: float = 0.9
    """Of each GPU's memory, to be free before a server is started there."""
    memory_timeout_s: float = 60.0
    """Longest wait for the memory of GPUs that another process has just left."""
    stop_grace_s: float = 30.0
    """From SIGTERM to SIGKILL. SGLang looks every 5 s whether its requests are done, and then gives its
    schedulers 15 s."""


class SGLangWorker:
    """A server that this process started, and the adapter that talks to it."""

    def __init__(
        self,
        plan: LaunchPlan,
        process: asyncio.subprocess.Process,
        engine: SGLangEngine,
        client: SGLangClient,
        log_path: Path,
        *,
        stop_grace_s: float,
        release: Callable[[], None],
    ) -> None:
        self.plan = plan
        self.engine = engine
        self.url: str = plan.url
        self.pid: int = process.pid
        self.slots: int | None = engine.grants
        self.kv_capacity_tokens: int | None = engine.facts.max_total_num_tokens
        self.prefix_capacity_tokens: int | None = engine.facts.max_total_num_tokens
        self._process = process
        self._client = client
        self._log_path = log_path
        self._stop_grace_s = stop_grace_s
        self._release = release

    async def wait(self) -> str:
        """How the process ended: its exit code or signal, and the last line of its log."""
        return await obituary(self._process, self._log_path)

    async def stop(self) -> None:
        """Abort what runs there, then SIGTERM to the server, SIGKILL to its group; frees its devices."""
        try:
            if self._process.returncode is None:
                with suppress(EngineError):
                    await self._client.post("/abort_request", {"abort_all": True}, timeout_s=ABORT_TIMEOUT_S)
            await self._client.close()
            await self.engine.close()
        finally:
            await end_process(self._process, grace_s=self._stop_grace_s)
            self._release()


class SGLangLauncher:
    """Launches servers that are made after ``template``.

    ``memory_in_use`` tells when GPUs are free for a new server; ``None`` where there are none. Launch from
    the thread that lives as long as the process: on Linux a server dies with the thread that forked it.
    """

    def __init__(
        self,
        template: ServerTemplate,
        leases: Leases,
        rules: LaunchRules,
        *,
        memory_in_use: MemoryInUse | None,
        engine_settings: SGLangSettings,
    ) -> None:
        self._template = template
        self._leases = leases
        self._rules = rules
        self._memory_in_use = memory_in_use
        self._engine_settings = engine_settings
        self._starting = asyncio.Semaphore(rules.at_once)

    async def launch(self, spec: WorkerSpec, log_path: Path) -> SGLangWorker:
        """Start a server; returns when it generates. See ``EngineLauncher.launch``.

        Waits for devices that other workers are about to give back.
        """
        lease = await self._leases.take(spec.worker_id, spec.tp_degree, wait_s=self._rules.ready_timeout_s)
        try:
            async with self._starting:
                await self._until_memory_is_free(lease)
                plan = plan_launch(spec, lease.devices, lease.ports, self._template)
                return await self._start(plan, lease, log_path)
        except BaseException:
            self._leases.give_back(lease)
            raise

    async def _until_memory_is_free(self, lease: Lease) -> None:
        """A GPU's memory comes back a moment after its process has ended."""
        if self._template.device is DeviceKind.CPU or self._memory_in_use is None:
            return
        most = 1.0 - self._rules.free_share
        busy: dict[int, float] = {}
        try:
            async with asyncio.timeout(self._rules.memory_timeout_s):
                while True:
                    shares = await asyncio.to_thread(self._memory_in_use, lease.devices)
                    busy = {device: share for device, share in shares.items() if share > most}
                    if not busy:
                        return
                    await asyncio.sleep(MEMORY_POLL_S)
        except TimeoutError as exc:
            device, share = max(busy.items(), key=lambda item: item[1])
            raise EngineUnavailable(
                f"GPU {device}: {share:.0%} of its memory is in use by others, and stays so"
            ) from exc

    async def _start(self, plan: LaunchPlan, lease: Lease, log_path: Path) -> SGLangWorker:
        process = await _spawn(plan, log_path)
        client = SGLangClient(plan.url, streams=1)
        try:
            await self._until_ready(process, client, log_path)
            engine = await SGLangEngine.connect(plan.url, self._engine_settings)
            check_facts(engine.facts, plan.spec.tp_degree, self._template.context_tokens)
        except BaseException:
            await uninterrupted(client.close())
            await uninterrupted(end_process(process, grace_s=self._rules.stop_grace_s))
            raise
        return SGLangWorker(
            plan,
            process,
            engine,
            client,
            log_path,
            stop_grace_s=self._rules.stop_grace_s,
            release=lambda: self._leases.give_back(lease),
        )

    async def _until_ready(
        self, process: asyncio.subprocess.Process, client: SGLangClient, log_path: Path
    ) -> None:
        """Return when the server is ready. Raises ``EngineUnavailable`` where it ends or is late."""
        ended = asyncio.ensure_future(process.wait())
        ready = asyncio.ensure_future(await_ready(client))
        try:
            await asyncio.wait(
                {ended, ready}, timeout=self._rules.ready_timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            ended.cancel()
            ready.cancel()
            await uninterrupted(_settled(ended, ready))
        if process.returncode is not None:
            raise EngineUnavailable(f"{await obituary(process, log_path)}; see {log_path}")
        if ready.cancelled():
            raise EngineUnavailable(f"not ready within {self._rules.ready_timeout_s:g} s; see {log_path}")
        ready.result()


async def _spawn(plan: LaunchPlan, log_path: Path) -> asyncio.subprocess.Process:
    """The server's process, leader of a group of its own. Raises ``EngineUnavailable``."""
    tether = (sys.executable, "-P", "-m", "heddle.engines.sglang.tether", str(os.getpid()))
    header = f"{plan.spec.worker_id} starts: {plan.shell()}"
    try:
        log_fd = await asyncio.to_thread(open_log, log_path, header)
        try:
            return await asyncio.create_subprocess_exec(
                *tether,
                *plan.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log_fd,
                stderr=log_fd,
                env=plan.child_environment(os.environ),
                start_new_session=True,
            )
        finally:
            os.close(log_fd)
    except OSError as exc:
        raise EngineUnavailable(f"cannot start the server's process: {exc}") from exc


async def _settled(*futures: asyncio.Future[Any]) -> None:
    await asyncio.wait(futures)
