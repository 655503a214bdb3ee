"""Requests that steer a mock: slots, pauses, sessions, weights."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from heddle.testing.mock_sglang.cache import PrefixCache
from heddle.testing.mock_sglang.frontend import Frontend
from heddle.testing.mock_sglang.scheduler import MockScheduler
from heddle.testing.mock_sglang.settings import MockSettings
from heddle.types import PauseMode


class Controls:
    """Their handlers."""

    def __init__(
        self, settings: MockSettings, frontend: Frontend, scheduler: MockScheduler, cache: PrefixCache
    ) -> None:
        self._settings = settings
        self._frontend = frontend
        self._scheduler = scheduler
        self._cache = cache

    def routes(self) -> list[web.RouteDef]:
        """Where they answer."""
        get, post = web.get, web.post
        return [
            post("/set_internal_state", self._set_internal_state),
            post("/pause_generation", self._pause),
            post("/continue_generation", self._continue),
            *(verb("/flush_cache", self._flush) for verb in (get, post)),
            post("/close_session", self._close_session),
            post("/update_weights_from_disk", self._update_weights),
            post("/update_weight_version", self._update_weight_version),
            post("/begin_weight_update", self._begin_update),
            post("/end_weight_update", self._end_update),
            post("/update_weights_from_distributed", self._update_given),
            post("/update_weights_from_tensor", self._update_given),
        ]

    async def _set_internal_state(self, request: web.Request) -> web.Response:
        changes = (await read_json(request)).get("server_args") or {}
        slots = changes.get("pp_max_micro_batch_size")
        accepted = set(changes) == {"pp_max_micro_batch_size"} and (
            isinstance(slots, int) and 1 <= slots <= self._settings.max_running_requests
        )
        if isinstance(slots, int) and accepted:
            self._scheduler.slots = slots
        return web.json_response([accepted])

    async def _pause(self, request: web.Request) -> web.Response:
        body = await read_json(request)
        await self._frontend.pause(PauseMode(body.get("mode", "abort")))
        return web.json_response({"message": "Generation paused successfully.", "status": "ok"})

    async def _continue(self, request: web.Request) -> web.Response:
        self._frontend.resume()
        return web.json_response({"message": "Generation continued successfully.", "status": "ok"})

    async def _flush(self, request: web.Request) -> web.Response:
        if self._scheduler.flush():
            return web.Response(text="Cache flushed.\n")
        return web.Response(text="Flush cache failed.\n", status=400)

    async def _close_session(self, request: web.Request) -> web.Response:
        self._cache.close_session((await read_json(request)).get("session_id", ""))
        return web.Response()

    async def _update_weights(self, request: web.Request) -> web.Response:
        body = await read_json(request)
        success, message = await self._frontend.load_weights(
            body["model_path"], body.get("weight_version"), flush=body.get("flush_cache", True)
        )
        outcome = {"success": success, "message": message, "num_paused_requests": 0}
        return web.json_response(outcome, status=200 if success else 400)

    async def _update_weight_version(self, request: web.Request) -> web.Response:
        body = await read_json(request)
        if body.get("abort_all_requests", True):
            self._frontend.abort("", everything=True)
        self._frontend.weight_version = body["new_version"]
        message = f"Weight version updated to {body['new_version']}"
        return web.json_response({"success": True, "message": message, "new_version": body["new_version"]})

    async def _begin_update(self, request: web.Request) -> web.Response:
        return self._bracket(begins=True)

    async def _end_update(self, request: web.Request) -> web.Response:
        return self._bracket(begins=False)

    def _bracket(self, *, begins: bool) -> web.Response:
        if self._frontend.updating is begins:
            state, other = ("already open", "end") if begins else ("not open", "begin")
            return _outcome(False, f"a weight-update session is {state}; call {other}_weight_update() first")
        self._frontend.updating = begins
        return _outcome(True, "Succeeded.")

    async def _update_given(self, request: web.Request) -> web.Response:
        """Weights from a trainer; what they are does not matter here."""
        body = await read_json(request)
        if not self._frontend.updating:
            return _outcome(False, "updates must run between begin_weight_update() and end_weight_update()")
        version = body.get("weight_version")
        if version is not None:
            self._frontend.weight_version = version
        return _outcome(True, "Succeeded to update parameter online.")


async def read_json(request: web.Request) -> dict[str, Any]:
    """The body, an object; an empty one is as good as ``{}``."""
    text = await request.text()
    body = json.loads(text) if text else {}
    if not isinstance(body, dict):
        raise web.HTTPBadRequest
    return body


def _outcome(success: bool, message: str) -> web.Response:
    return web.json_response({"success": success, "message": message}, status=200 if success else 400)
