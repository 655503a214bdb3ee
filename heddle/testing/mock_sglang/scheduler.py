"""Decides what each step of a mock computes, and does it: admission, chunks, preemption, retraction.

A step is planned, takes its time, and is then applied, so that an abort which comes meanwhile finds the
request where a real one would: running, waiting, or in the middle of its prompt.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

from heddle.testing.mock_sglang.cache import PrefixCache
from heddle.testing.mock_sglang.faults import SOUND, MockFaults
from heddle.testing.mock_sglang.memory import RequestMemory
from heddle.testing.mock_sglang.model import MockModel, checksum
from heddle.testing.mock_sglang.requests import AbortKind, MockRequest
from heddle.testing.mock_sglang.settings import MockSettings
from heddle.testing.mock_sglang.tally import Tally
from heddle.types import PauseMode

WAITING_ABORT = "Abort in waiting queue"
RUNNING_ABORT: Mapping[str, object] = {
    "type": "abort",
    "message": "Aborted",
    "status_code": None,
    "err_type": None,
}
NO_MEMORY = (
    "Out of memory even after retracting all other requests in the decode batch. Aborting the last request."
)
QUEUE_FULL = "The request queue is full."
OUTRANKED = "The request is aborted by a higher priority request."


@dataclass(slots=True)
class _Chunk:
    """Part of a prompt that one step computes."""

    request: MockRequest
    tokens: int


class MockScheduler:
    """``run`` it in a task; everything else is called from the same event loop."""

    def __init__(
        self,
        settings: MockSettings,
        model: MockModel,
        cache: PrefixCache,
        *,
        weight_version: Callable[[], str],
        crash: Callable[[str], None],
    ) -> None:
        self.faults: MockFaults = SOUND
        self.slots = settings.max_running_requests
        self.waiting: list[MockRequest] = []
        self.running: list[MockRequest] = []
        self.paused: PauseMode | None = None
        self.tally = Tally()
        self._settings = settings
        self._model = model
        self._cache = cache
        self._memory = RequestMemory(cache, sessions=settings.enable_session_radix_cache)
        self._weight_version = weight_version
        self._crash = crash
        self._prefilling: MockRequest | None = None
        """Its prompt is computed in chunks, and some are done."""
        self._hangs = False
        self._wake = asyncio.Event()
        self._settled = asyncio.Event()

    @property
    def idle(self) -> bool:
        """Nothing runs and nothing waits."""
        return not (self.waiting or self.running or self._prefilling)

    async def became_idle(self) -> None:
        """Return when nothing runs and nothing waits."""
        while not self.idle:
            self._settled.clear()
            await self._settled.wait()

    @property
    def responsive(self) -> bool:
        """A probe would be answered."""
        return self.paused is None and not self._hangs

    async def run(self) -> None:
        """Compute steps until cancelled."""
        while True:
            if self.paused is not None or self._hangs or self.idle:
                self._wake.clear()
                await self._wake.wait()
                continue
            chunks = self._plan_prefill()
            if chunks:
                await self._prefill(chunks)
            else:
                await self._decode()

    # -------------------------------------------------------------------------------- from outside

    def submit(self, request: MockRequest) -> None:
        """A request joins the queue, or is turned away where that is full."""
        abort_with = self.faults.abort_with
        if abort_with is not None:
            self._abort_by_server(request, "aborted by order of the test", abort_with)
        elif self._settings.max_queued_requests is None or len(self.waiting) < (
            self._settings.max_queued_requests
        ):
            self._enqueue(request)
        else:
            self._turn_away(request)

    def abort(self, rid: str, *, everything: bool = False) -> None:
        """End each request whose id begins with ``rid``."""
        if self.faults.ignore_aborts:
            return
        for request in [*self.waiting]:
            if everything or request.asked.rid.startswith(rid):
                self.waiting.remove(request)
                self._abort_waiting(request)
        for request in [*self.running, *([self._prefilling] if self._prefilling else [])]:
            request.to_abort |= everything or request.asked.rid.startswith(rid)
        if self.paused is not None:
            self._sweep_paused()
        self._wake.set()

    def pause(self, mode: PauseMode) -> None:
        """Compute no further step; ``RETRACT`` sends everything that runs back to the queue."""
        self.paused = mode
        if mode is PauseMode.RETRACT:
            for request in [*self.running]:
                self._retract(request)
            if self._prefilling is not None:
                self._give_up_prefill(self._prefilling)

    def resume(self) -> None:
        self.paused = None
        self._wake.set()

    def flush(self) -> bool:
        """Forget the prefix cache; False while anything runs, or waits without a pause."""
        if self.running or self._prefilling or (self.waiting and self.paused is None):
            return False
        self._cache.flush()
        return True

    # ----------------------------------------------------------------------------------- admission

    def _enqueue(self, request: MockRequest) -> None:
        request.queued_at = _now()
        self.waiting.append(request)
        self._wake.set()

    def _turn_away(self, request: MockRequest) -> None:
        """The least preferred of the queue and the newcomer goes; among equals the newcomer."""
        last = max(self.waiting, key=lambda waiting: (-self._rank(waiting), waiting.queued_at))
        if self._settings.enable_priority_scheduling and self._rank(request) > self._rank(last):
            self.waiting.remove(last)
            self._abort_by_server(last, OUTRANKED, HTTPStatus.SERVICE_UNAVAILABLE)
            self._enqueue(request)
        else:
            self._abort_by_server(request, QUEUE_FULL, HTTPStatus.SERVICE_UNAVAILABLE)

    def _rank(self, request: MockRequest) -> int:
        """Larger is better, whichever way the server counts."""
        low_first = self._settings.schedule_low_priority_values_first
        return -request.priority if low_first else request.priority

    def _order(self, request: MockRequest) -> tuple[int, float]:
        by_priority = self._settings.enable_priority_scheduling
        return (-self._rank(request) if by_priority else 0, request.queued_at)

    def _plan_prefill(self) -> list[_Chunk]:
        budget = self._settings.chunked_prefill_size
        chunks: list[_Chunk] = []
        if self._prefilling is not None:
            chunk = self._next_chunk(self._prefilling, budget)
            chunks.append(chunk)
            budget -= chunk.tokens
        self.waiting.sort(key=self._order)
        for request in [*self.waiting]:
            if budget <= 0:
                break
            if not self._has_slot(chunks) and not self._preempt_for(request):
                break
            if not self._admit(request):
                break
            self.waiting.remove(request)
            chunk = self._next_chunk(request, budget)
            chunks.append(chunk)
            budget -= chunk.tokens
        return chunks

    def _has_slot(self, chunks: list[_Chunk]) -> bool:
        return len(self.running) + len(chunks) < min(self.slots, self._settings.max_running_requests)

    def _admit(self, request: MockRequest) -> bool:
        """Take room for it; a lack of room preempts nobody."""
        first = request.match is None
        if not self._memory.admit(request):
            return False
        if first and request.match is not None:
            self.tally.prompt_tokens += len(request.asked.input_ids)
            self.tally.cached_tokens += request.match.tokens
        return True

    def _next_chunk(self, request: MockRequest, budget: int) -> _Chunk:
        return _Chunk(request, min(budget, len(request.all_ids) - request.computed))

    def _preempt_for(self, newcomer: MockRequest) -> bool:
        """Take a slot from the worst running request, if it is worse by more than the threshold."""
        settings = self._settings
        if not settings.enable_priority_scheduling or settings.disable_priority_preemption:
            return False
        if not self.running:
            return False
        victim = min(self.running, key=lambda request: (self._rank(request), -request.queued_at))
        lead = self._rank(newcomer) - self._rank(victim)
        if lead <= settings.priority_scheduling_preemption_threshold:
            return False
        self._retract(victim)
        return True

    # ---------------------------------------------------------------------------------------- steps

    async def _prefill(self, chunks: list[_Chunk]) -> None:
        tokens = sum(chunk.tokens for chunk in chunks)
        seconds = tokens * self._settings.timing.prefill_s_per_token
        self._prefilling = None
        unfinished = [c.request for c in chunks if c.request.computed + c.tokens < len(c.request.all_ids)]
        if unfinished:
            self._prefilling = unfinished[-1]
        done = [chunk.request for chunk in chunks if chunk.request is not self._prefilling]
        self.running += done
        await asyncio.sleep(seconds)
        self.tally.prefilled_tokens += tokens
        self.tally.prefill_s += seconds
        for chunk in chunks:
            chunk.request.computed += chunk.tokens
        for request in done:
            if request in self.running:  # no pause has sent it back meanwhile
                self._finish_prefill(request)
        if self._prefilling is not None and self._prefilling.to_abort:
            self._abort_prefill(self._prefilling)

    def _finish_prefill(self, request: MockRequest) -> None:
        asked = request.asked
        self._memory.keep(request, request.all_ids)
        if not request.output_ids:
            request.state = checksum(asked.input_ids)
        if asked.max_new_tokens == 0:
            self._finish(request, {"type": "length", "length": 0})
        else:
            self._sample(request)

    async def _decode(self) -> None:
        self._make_room()
        batch = [*self.running]
        if not batch:
            await asyncio.sleep(0)
            return
        seconds = self._settings.timing.decode(len(batch))
        await asyncio.sleep(seconds)
        tokens = 0
        for request in batch:
            if request in self.running and not self._hangs:
                tokens += 1
                self._sample(request)
        self.tally.decoded(len(batch), seconds, tokens)

    def _make_room(self) -> None:
        """One token for each that runs. Where they do not fit, the shortest output goes back to the queue."""
        while self.running and not self._memory.grow(self.running):
            if len(self.running) == 1:
                [last] = self.running
                self._drop(last)
                self._abort_by_server(last, NO_MEMORY, HTTPStatus.INTERNAL_SERVER_ERROR)
            else:
                self._retract(min(self.running, key=lambda request: len(request.output_ids)))

    def _sample(self, request: MockRequest) -> None:
        """Its next token, and whatever ends with it."""
        asked, count = request.asked, len(request.output_ids)
        token_id, logprob = self._next_token(request, count)
        request.output_ids.append(token_id)
        request.logprobs.append(logprob)
        request.versions.append(self._weight_version())
        self.tally.generated_tokens += 1
        request.state = checksum((token_id,), request.state)
        if request.first_token_at is None:
            request.first_token_at = _now()
        count += 1
        if self.faults.crash_after_tokens == count:
            self._crash(f"crashed after {count} tokens")
        self._hangs |= self.faults.hang_after_tokens == count
        stops = asked.stop_ids | {self._settings.end_id}
        if request.to_abort:
            request.abort = AbortKind.WHILE_RUNNING
            self._finish(request, dict(RUNNING_ABORT))
        elif token_id in stops and not asked.ignore_eos:
            self._finish(request, {"type": "stop", "matched": token_id})
        elif count >= asked.max_new_tokens:
            self._finish(request, {"type": "length", "length": count})
        else:
            request.show()

    def _next_token(self, request: MockRequest, count: int) -> tuple[int, float]:
        asked = request.asked
        if asked.script is not None:
            return (asked.script[count] if count < len(asked.script) else self._settings.end_id), -0.25
        return self._model.sample(request.state, greedy=asked.greedy, bias=asked.bias)

    # ------------------------------------------------------------------------------- ends and returns

    def _finish(self, request: MockRequest, finish: dict[str, object]) -> None:
        """It ends with what it has, which goes into the prefix cache."""
        self._memory.remember(request)
        self._drop(request)
        self._settle(request, finish)

    def _drop(self, request: MockRequest) -> None:
        """Give back its slot and its room."""
        if request in self.running:
            self.running.remove(request)
        self._memory.release(request)

    def _retract(self, request: MockRequest) -> None:
        """Back to the queue: what it generated is computed anew later, its prompt may still be cached."""
        self._drop(request)
        request.retractions += 1
        self.tally.retracted += 1
        if request.to_abort:
            self._abort_waiting(request)
        else:
            self._enqueue(request)

    def _give_up_prefill(self, request: MockRequest) -> None:
        self._prefilling = None
        self._drop(request)
        self._enqueue(request)

    def _abort_prefill(self, request: MockRequest) -> None:
        self._prefilling = None
        self._drop(request)
        self._abort_waiting(request)

    def _abort_waiting(self, request: MockRequest) -> None:
        """Its client is shown no more than it has been."""
        del request.output_ids[request.shown :], request.logprobs[request.shown :]
        request.abort = AbortKind.WHILE_WAITING
        self._settle(request, {"type": "abort", "message": WAITING_ABORT})

    def _abort_by_server(self, request: MockRequest, message: str, status: int) -> None:
        request.abort = AbortKind.BY_SERVER
        self._settle(request, {"type": "abort", "message": message, "status_code": int(status)})

    def _sweep_paused(self) -> None:
        """No step will end them; with the pause in place they end at the next one."""
        if self._prefilling is not None and self._prefilling.to_abort:
            self._abort_prefill(self._prefilling)

    def _settle(self, request: MockRequest, finish: dict[str, object]) -> None:
        request.finish = finish
        request.finished_at = _now()
        request.show()
        self._settled.set()


def worst_priority(settings: MockSettings) -> int:
    """Of a request that names none, where the server has no default."""
    if settings.default_priority_value is not None:
        return settings.default_priority_value
    return sys.maxsize if settings.schedule_low_priority_values_first else -sys.maxsize - 1


def _now() -> float:
    return asyncio.get_running_loop().time()
