"""Servers that somebody else runs: used, watched, and never stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from heddle.engines.sglang.adapter import SGLangEngine, SGLangSettings
from heddle.engines.sglang.client import SGLangClient
from heddle.engines.sglang.facts import ServerFacts, ask_facts
from heddle.engines.sglang.priority import running_slots
from heddle.engines.sglang.readiness import await_ready, check_facts
from heddle.errors import ConfigError, EngineError, EngineUnavailable
from heddle.types import WorkerId, WorkerSpec


@dataclass(frozen=True, slots=True)
class FoundServer:
    """A server that answers, as it describes itself."""

    url: str
    facts: ServerFacts


async def find_servers(urls: Sequence[str], *, api_key: str | None = None) -> tuple[FoundServer, ...]:
    """Ask each what it is. Raises ``ConfigError`` that names the one that does not answer."""
    if len(set(urls)) != len(urls):
        raise ConfigError("engine.sglang.workers: a server is named twice")
    return tuple([FoundServer(url, await _ask(url, api_key)) for url in urls])


async def _ask(url: str, api_key: str | None) -> ServerFacts:
    client = SGLangClient(url, streams=1, api_key=api_key)
    try:
        return await ask_facts(client)
    except EngineError as exc:
        raise ConfigError(f"engine.sglang.workers: {url} is no SGLang server that runs: {exc}") from exc
    finally:
        await client.close()


class AttachedWorker:
    """A server that runs already, and the adapter that talks to it."""

    pid: int | None = None

    def __init__(self, url: str, engine: SGLangEngine) -> None:
        self.engine = engine
        self.url: str = url
        self.slots: int | None = engine.grants
        self.kv_capacity_tokens: int | None = engine.facts.max_total_num_tokens
        self.prefix_capacity_tokens: int | None = engine.facts.max_total_num_tokens

    async def wait(self) -> str:
        """Never returns: only its health tells that it is gone."""
        await asyncio.Event().wait()
        raise AssertionError("nobody sets this event")

    async def stop(self) -> None:
        """Let go of it: the requests of this process end, the server goes on."""
        await self.engine.close()


class AttachLauncher:
    """Attaches to servers, each one worker's. Nothing is started."""

    def __init__(
        self,
        servers: Sequence[FoundServer],
        *,
        context_tokens: int,
        ready_timeout_s: float,
        engine_settings: SGLangSettings,
        native_share: float | None = None,
    ) -> None:
        self._servers = tuple(servers)
        self._context_tokens = context_tokens
        self._ready_timeout_s = ready_timeout_s
        self._engine_settings = engine_settings
        self._native_share = native_share
        self._assigned: dict[WorkerId, FoundServer] = {}

    async def launch(self, spec: WorkerSpec, log_path: Path) -> AttachedWorker:
        """Wait until the worker's server is ready; nothing is logged. See ``EngineLauncher.launch``."""
        server = self._server_of(spec)
        client = SGLangClient(server.url, streams=1, api_key=self._engine_settings.api_key)
        try:
            async with asyncio.timeout(self._ready_timeout_s):
                await await_ready(client)
        except TimeoutError as exc:
            raise EngineUnavailable(f"{server.url} was not ready for {self._ready_timeout_s:g} s") from exc
        finally:
            await client.close()
        engine = await SGLangEngine.connect(server.url, self._engine_settings)
        try:
            check_facts(engine.facts, spec.tp_degree, self._context_tokens)
            if self._native_share is not None:
                most = engine.facts.slots or spec.slots
                await engine.set_slots(min(most, running_slots(spec.slots, self._native_share)))
        except (ConfigError, EngineError):
            await engine.close()
            raise
        return AttachedWorker(server.url, engine)

    def _server_of(self, spec: WorkerSpec) -> FoundServer:
        """The worker's own server, also after a restart. Raises ``ConfigError`` where none is left."""
        server = self._assigned.get(spec.worker_id)
        if server is None:
            free = [found for found in self._servers if found not in self._assigned.values()]
            fitting = [found for found in free if found.facts.tp_size == spec.tp_degree]
            if not fitting:
                raise ConfigError(
                    f"worker {spec.worker_id}: no server of degree {spec.tp_degree} is left among those given"
                )
            server = self._assigned[spec.worker_id] = fitting[0]
        return server
