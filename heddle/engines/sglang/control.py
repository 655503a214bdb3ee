"""Everything that is asked of a server besides generations."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import TypeAdapter, ValidationError

from heddle.engines.sglang.client import SGLangClient
from heddle.engines.sglang.loads import PATHS as LOADS_PATHS
from heddle.engines.sglang.loads import RankLoad, engine_load, parse_loads
from heddle.errors import EngineRejected, EngineUnavailable
from heddle.types import EngineLoad, Json, PauseMode

WEIGHTS_TIMEOUT_S = 600.0
"""Reading a large checkpoint from a shared file system takes minutes."""
PAUSE_TIMEOUT_S = 60.0
"""A pause that aborts looks once a second whether everything has ended."""

_ACCEPTED = TypeAdapter(list[bool] | bool)


class ServerControl:
    """Calls of one server. Each raises ``EngineError`` subclasses only, within its own deadline."""

    def __init__(self, client: SGLangClient) -> None:
        self._client = client

    async def abort(self, rid: str) -> None:
        """Order the end of every request whose id begins with ``rid``; unknown ids are ignored."""
        await self._client.post("/abort_request", {"rid": rid})

    async def abort_all(self) -> None:
        """Order the end of every request, whoever sent it."""
        await self._client.post("/abort_request", {"rid": "", "abort_all": True})

    async def close_session(self, session_id: str) -> None:
        await self._client.post("/close_session", {"session_id": session_id})

    async def set_slots(self, slots: int) -> None:
        """Raises ``EngineRejected`` where the server does not take that number."""
        body = {"server_args": {"pp_max_micro_batch_size": slots}}
        answer = await self._client.post("/set_internal_state", body)
        try:
            accepted = _ACCEPTED.validate_json(answer)
        except ValidationError as exc:
            raise EngineUnavailable(f"the engine answered {answer[:80]!r} to a number of slots") from exc
        if accepted is False or (isinstance(accepted, list) and not all(accepted)):
            raise EngineRejected(f"the engine does not run {slots} generations at once")

    async def pause(self, mode: PauseMode) -> None:
        """Returns when nothing is computed any more."""
        await self._client.post("/pause_generation", {"mode": mode.value}, timeout_s=PAUSE_TIMEOUT_S)

    async def resume(self) -> None:
        await self._client.post("/continue_generation", {"torch_empty_cache": False})

    async def flush_cache(self) -> None:
        """Raises ``EngineRejected`` while requests run or wait."""
        await self._client.post("/flush_cache", {})

    async def update_weights_from_disk(self, path: str, version: int) -> None:
        """Waits for running requests to end, unless the server pauses.

        Raises ``EngineRejected`` where the weights do not fit; the server goes on with the old ones. It
        would call a flush that failed a failed update, although the new weights serve, so the flush is a
        request of its own.
        """
        body = {
            "model_path": path,
            "weight_version": str(version),
            "abort_all_requests": False,
            "flush_cache": False,
        }
        await self._client.post("/update_weights_from_disk", body, timeout_s=WEIGHTS_TIMEOUT_S)

    async def begin_weight_update(self) -> None:
        """Servers that do not know it need no preparation."""
        await self._client.post_if_known("/begin_weight_update", {}, timeout_s=WEIGHTS_TIMEOUT_S)

    async def weight_call(self, endpoint: str, body: Mapping[str, Json]) -> None:
        """A trainer's call. The cache is flushed and requests are ended apart from it, or not at all."""
        apart = {"flush_cache": False, "abort_all_requests": False} if endpoint.startswith("update_") else {}
        await self._client.post(f"/{endpoint}", {**body, **apart}, timeout_s=WEIGHTS_TIMEOUT_S)

    async def end_weight_update(self, version: int) -> None:
        """Finish what ``begin_weight_update`` began, and name the weights."""
        await self._client.post_if_known("/end_weight_update", {}, timeout_s=WEIGHTS_TIMEOUT_S)
        # The server would end every request by default.
        named = {"new_version": str(version), "abort_all_requests": False}
        await self._client.post("/update_weight_version", named)

    async def loads(self) -> list[RankLoad]:
        """One entry per data-parallel rank."""
        return parse_loads(await self._client.get(*LOADS_PATHS))

    async def load(self) -> EngineLoad:
        """All ranks as one."""
        return engine_load(await self.loads())

    async def health(self, *, paused: bool) -> None:
        """Raises ``EngineUnavailable`` where the server is not ready, a pause apart."""
        if paused:
            await self._client.get("/model_info", "/get_model_info")
        else:
            await self._client.get("/ready", "/health_generate")
