"""Starts engine processes and stops them; the other side of ``server``'s contract."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import secrets
import sys
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ValidationError

from heddle.engines.embedded import KEY_VARIABLE
from heddle.engines.embedded.adapter import SPARE_SLOTS, EmbeddedEngine
from heddle.engines.embedded.exchange import KvExchange
from heddle.engines.embedded.model import default_cache_dir
from heddle.engines.embedded.transfer import SlotExchange
from heddle.engines.process import end_process, obituary, open_log
from heddle.engines.uninterrupted import uninterrupted
from heddle.errors import ConfigError, EngineUnavailable
from heddle.types import WorkerSpec

STOP_GRACE_S = 3.0
"""From SIGTERM to SIGKILL; the server has nothing to save and ends at once."""
_THREADING = {"OMP_WAIT_POLICY": "passive"}
"""Threads that wait for each other sleep instead of spinning. The cores are shared with tools and with the
coordinator; observed with two threads on two busy cores: 0.3 to 2 tokens/s spinning, 11 to 39 sleeping.
The user's environment has precedence."""


class _Report(BaseModel):
    """What a server says once it answers."""

    url: str


@dataclass(frozen=True, slots=True)
class _KvCost:
    token_bytes: int | None
    """``None`` where the model does not say."""


class EmbeddedWorker:
    """A running engine process and the adapter that talks to it."""

    slots: int | None = None

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        engine: EmbeddedEngine,
        url: str,
        *,
        kv_tokens: int,
        host_tokens: int | None,
        log: Path,
    ) -> None:
        self.process = process
        self.engine = engine
        self.url: str = url
        self.pid: int = process.pid
        self.kv_capacity_tokens: int = kv_tokens
        self.prefix_capacity_tokens: int | None = None if host_tokens is None else kv_tokens + host_tokens
        self._log_path = log

    async def wait(self) -> str:
        """How the process ended: its exit code or signal, and the last line of its log."""
        await self.process.wait()
        return await obituary(self.process, self._log_path)

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL; returns when the process is reaped."""
        await end_process(self.process, grace_s=STOP_GRACE_S)
        await self.engine.close()


class EmbeddedLauncher:
    """Launches llama.cpp servers on one model.

    ``context_tokens`` is what each slot has for prompt and response. ``host_cache_mib`` bounds the memory
    that one worker spends on prefixes of trajectories that are in their tools, ``transfer_mib`` what all
    spend together on prefixes that go from one to another; 0 means that none can. Launch from the thread that
    lives as long as the process: on Linux a server dies with the thread that forked it.
    """

    def __init__(
        self,
        model: Path,
        *,
        context_tokens: int,
        ready_timeout_s: float,
        cache_dir: Path | None = None,
        host_cache_mib: int = 1024,
        transfer_mib: int = 1024,
    ) -> None:
        self._model = model
        self._context_tokens = context_tokens
        self._ready_timeout_s = ready_timeout_s
        self._cache_dir = cache_dir or default_cache_dir()
        self._host_cache_mib = host_cache_mib
        self._preparing = asyncio.Lock()
        self._transfer_mib = transfer_mib
        self._exchange: SlotExchange | None = None
        self._cost: _KvCost | None = None
        """Looked up with the first launch: the vocabulary that tells it takes tens of megabytes to read."""

    @property
    def model(self) -> Path:
        """What it launches servers on."""
        return self._model

    async def launch(self, spec: WorkerSpec, log_path: Path) -> EmbeddedWorker:
        """Start a server; returns when it generates. See ``EngineLauncher.launch``."""
        _check(spec)
        async with self._preparing:  # one copy, not one per worker
            weights = await asyncio.to_thread(_prepare, self._model, self._cache_dir)
            if self._cost is None:
                self._cost = await asyncio.to_thread(_kv_cost, self._model)
            token_bytes = self._cost.token_bytes
            self._exchange = self._exchange or _make_exchange(token_bytes, self._transfer_mib)
        host_tokens = self._host_cache_mib * 1024 * 1024 // token_bytes if token_bytes else None
        key = secrets.token_urlsafe(24)
        process = await self._spawn(spec, weights, log_path, key)
        try:
            async with asyncio.timeout(self._ready_timeout_s):
                url, engine, kv_tokens = await self._await_ready(process, spec, log_path, key)
        except TimeoutError as exc:
            await uninterrupted(end_process(process, grace_s=STOP_GRACE_S))
            raise EngineUnavailable(f"not ready within {self._ready_timeout_s:g} s") from exc
        except BaseException:
            await uninterrupted(end_process(process, grace_s=STOP_GRACE_S))
            raise
        return EmbeddedWorker(
            process, engine, url, kv_tokens=kv_tokens, host_tokens=host_tokens, log=log_path
        )

    async def _spawn(
        self, spec: WorkerSpec, weights: Path, log_path: Path, key: str
    ) -> asyncio.subprocess.Process:
        exchange = self._exchange
        arguments = [
            *("-P", "-m", "heddle.engines.embedded.server"),
            *("--model", str(weights)),
            *("--threads", str(spec.tp_degree)),
            *("--slots", str(spec.slots + (SPARE_SLOTS if exchange is not None else 0))),
            *(("--kv-dir", str(exchange.files.directory)) if exchange is not None else ()),
            *("--slot-context", str(self._context_tokens)),
            *("--cache-ram-mib", str(self._host_cache_mib)),
            *("--parent-pid", str(os.getpid())),
        ]
        try:
            log_fd = await asyncio.to_thread(
                open_log, log_path, f"{spec.worker_id} starts: {spec.tp_degree} threads, {spec.slots} slots"
            )
            try:
                return await asyncio.create_subprocess_exec(
                    sys.executable,
                    *arguments,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=log_fd,
                    env={**_THREADING, **os.environ, KEY_VARIABLE: key},
                    start_new_session=True,
                )
            finally:
                os.close(log_fd)
        except OSError as exc:
            raise EngineUnavailable(f"cannot start the engine process: {exc}") from exc

    async def _await_ready(
        self, process: asyncio.subprocess.Process, spec: WorkerSpec, log_path: Path, key: str
    ) -> tuple[str, EmbeddedEngine, int]:
        """Its address, the adapter to it, and the tokens that its slots hold."""
        assert process.stdout is not None
        line = await process.stdout.readline()
        try:
            url = _Report.model_validate_json(line).url
        except ValidationError as exc:
            await end_process(process, grace_s=STOP_GRACE_S)
            raise EngineUnavailable(await obituary(process, log_path)) from exc
        engine = EmbeddedEngine(url, slots=spec.slots, api_key=key, exchange=self._exchange)
        try:
            slots = await engine.slots()
            smallest = min(slot.n_ctx for slot in slots)
            if smallest < self._context_tokens:
                raise ConfigError(
                    f"engine.context_tokens: the model allows {smallest}, not {self._context_tokens}"
                )
        except BaseException:
            await uninterrupted(engine.close())
            raise
        return url, engine, smallest * spec.slots


def _check(spec: WorkerSpec) -> None:
    for package in ("xllamacpp", "gguf"):
        if importlib.util.find_spec(package) is None:
            raise ConfigError(f"the embedded engine needs {package}: pip install 'heddle[embedded]'")
    cores = usable_cores()
    if not 1 <= spec.tp_degree <= cores:
        raise ConfigError(f"worker {spec.worker_id}: {spec.tp_degree} threads on {cores} usable cores")
    if spec.slots < 1:
        raise ConfigError(f"worker {spec.worker_id}: at least one slot is needed")


def _make_exchange(token_bytes: int | None, budget_mib: int) -> SlotExchange | None:
    """``None`` where transfers are not wanted, or nobody knows how large they are."""
    if token_bytes is None or budget_mib == 0:
        return None
    try:
        return SlotExchange(KvExchange(budget_bytes=budget_mib * 1024 * 1024), token_bytes)
    except OSError as exc:
        raise ConfigError(f"no room for KV that goes from one worker to another: {exc}") from exc


def _prepare(model: Path, cache_dir: Path) -> Path:
    from heddle.engines.embedded.streamable import streamable_copy  # needs the extra, checked before

    return streamable_copy(model, cache_dir)


def _kv_cost(model: Path) -> _KvCost:
    from heddle.text.gguf_vocabulary import load_gguf_vocabulary  # needs the extra, checked before

    return _KvCost(load_gguf_vocabulary(model).kv_bytes_per_token)


def usable_cores() -> int:
    """Cores that this process may run on."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    else:
        return os.cpu_count() or 1
