"""Between HTTP and the scheduler: ids that are taken, pauses that hold newcomers, weights and versions."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from heddle.testing.mock_sglang.bodies import BadRequest, read_request
from heddle.testing.mock_sglang.model import MockModel
from heddle.testing.mock_sglang.replies import event
from heddle.testing.mock_sglang.requests import Asked, MockRequest
from heddle.testing.mock_sglang.scheduler import MockScheduler, worst_priority
from heddle.testing.mock_sglang.settings import MockSettings
from heddle.types import PauseMode

NOT_FLUSHED = (
    "Weights were updated, but the cache was not flushed because requests are still running or queued. "
    "Retract or finish them, then call /flush_cache."
)


class Frontend:
    """All methods belong to the event loop of the scheduler."""

    def __init__(self, settings: MockSettings, model: MockModel) -> None:
        self.weight_version = settings.weight_version
        self.updating = False
        """Between ``begin_weight_update`` and ``end_weight_update``."""
        self.aborted_total = 0
        self._settings = settings
        self._model = model
        self._live: dict[str, MockRequest | None] = {}
        """``None``: accepted, and held by a pause."""
        self._going = asyncio.Event()
        self._going.set()
        self._empty = asyncio.Event()
        self._empty.set()

    def attach(self, scheduler: MockScheduler) -> None:
        """The scheduler, which is made with a view of the version here."""
        self._scheduler = scheduler

    @property
    def paused(self) -> bool:
        return self._scheduler.paused is not None

    @property
    def in_flight(self) -> int:
        """Requests that have not been answered."""
        return len(self._live)

    async def drained(self) -> None:
        """Return when no request is in flight."""
        await self._empty.wait()

    # -------------------------------------------------------------------------------- generations

    def accept(self, body: Mapping[str, Any]) -> Asked:
        """Take up a request; whoever calls must ``run`` it. Raises ``BadRequest``."""
        asked = read_request(body, self._settings, rid=uuid.uuid4().hex)
        if asked.rid in self._live:
            raise BadRequest(f"Duplicate request ID detected: {asked.rid}")
        self._live[asked.rid] = None
        self._empty.clear()
        return asked

    async def run(self, asked: Asked) -> AsyncIterator[dict[str, Any]]:
        """The events of a request; one only, its reply, where it does not stream."""
        request: MockRequest | None = None
        try:
            await self._going.wait()
            request = self._request(asked)
            self._live[asked.rid] = request
            self._scheduler.submit(request)
            sent = 0
            while True:
                await request.changed.wait()
                request.changed.clear()
                finished = request.finish is not None
                if asked.stream or finished:
                    yield event(request, self._settings, self.weight_version, start=sent, end=request.shown)
                sent = request.shown
                if finished:
                    return
        finally:
            if request is not None and request.finish is None:
                self._scheduler.abort(asked.rid)
            del self._live[asked.rid]
            if not self._live:
                self._empty.set()

    def _request(self, asked: Asked) -> MockRequest:
        now = asyncio.get_running_loop().time()
        given = asked.priority
        priority = worst_priority(self._settings) if given is None else given
        return MockRequest(asked, priority, received_at=now, queued_at=now)

    def abort(self, rid: str, *, everything: bool = False) -> None:
        """As the tokenizer process does: an id that is not in flight goes no further."""
        if everything or (rid and rid in self._live):
            self.aborted_total += 1
            self._scheduler.abort(rid, everything=everything)

    # --------------------------------------------------------------------------- pauses and weights

    async def pause(self, mode: PauseMode) -> None:
        """New requests are held from now on."""
        self._going.clear()
        if mode is not PauseMode.ABORT:
            self._scheduler.pause(mode)
            return
        self._scheduler.abort("", everything=True)
        await self._scheduler.became_idle()
        self._scheduler.pause(mode)

    def resume(self) -> None:
        self._scheduler.resume()
        self._going.set()

    async def load_weights(self, path: str, version: str | None, *, flush: bool) -> tuple[bool, str]:
        """Success and a message. Unless paused, waits for what is in flight and holds newcomers."""
        if not self._is_checkpoint(path):
            return False, f"Failed to get weights iterator: {path!r} holds no weights."
        if self.paused:
            return self._load(path, version, flush=flush)
        self._going.clear()
        try:
            await self._scheduler.became_idle()
            return self._load(path, version, flush=flush)
        finally:
            self._going.set()

    def _is_checkpoint(self, path: str) -> bool:
        known = (self._settings.model_path, *self._settings.checkpoints)
        return path in known or Path(path).is_dir()

    def _load(self, path: str, version: str | None, *, flush: bool) -> tuple[bool, str]:
        self._model.load(path)
        if flush and not self._scheduler.flush():
            return False, NOT_FLUSHED
        message = "Succeeded to update model weights."
        if version is not None:
            self.weight_version = version
            message += f" Weight version updated to {version}."
        return True, message
