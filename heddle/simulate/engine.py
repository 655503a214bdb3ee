"""A simulated inference engine: continuous batching, chunked prefill, a prefix cache, in virtual time.

An engine iterates. One iteration either computes a chunk of prompts or gives every running generation one
token, or both (:class:`~heddle.simulate.hardware.PrefillMode`). Requests join, leave and are interrupted
between iterations only. A prompt's last chunk brings its first token. Many decoding iterations in which
nobody joins or leaves are one run, which is cut short at the next boundary when something arrives.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial

from heddle.simulate.agenda import Agenda
from heddle.simulate.curves import StepCurves
from heddle.simulate.hardware import EngineRules, PrefillMode
from heddle.simulate.prefix_cache import PrefixCache
from heddle.simulate.request import Request, Stage
from heddle.simulate.running_batch import RunningBatch

RETRACT_STEPS = 20
"""Memory for so many further tokens of every running generation is freed when it runs out, and must be there
before another one is admitted; SGLang's number."""

_NO_LIMIT = 1 << 60
_EPSILON = 1e-9
"""Iterations: what rounding may make of a whole number."""


class _Run(Enum):
    """What the engine does until it wakes."""

    NOTHING = auto()
    DECODE = auto()
    CHUNK = auto()


@dataclass(frozen=True, slots=True)
class EngineSpeed:
    """What one engine can do."""

    curves: StepCurves
    prefill_tokens_per_s: float
    kv_capacity_tokens: int | None
    prefix_capacity_tokens: int | None


class SimulatedEngine:
    """One worker's engine. ``ended`` hears of every request that is over: complete, or stopped in between
    where its ``kept_tokens`` is a number."""

    def __init__(
        self, agenda: Agenda, speed: EngineSpeed, rules: EngineRules, ended: Callable[[Request], None]
    ) -> None:
        self._agenda = agenda
        self._speed = speed
        self._rules = rules
        self._mixed = rules.prefill is PrefillMode.MIXED
        self._ended = ended
        self.cache = self._empty_cache()
        self._coming: dict[Request, None] = {}
        self._arrived: deque[Request] = deque()
        self._prefilling: deque[Request] = deque()
        self._batch = RunningBatch(speed.curves)
        self._stops: list[Request] = []
        """To be let go at the next boundary."""
        self._run = _Run.NOTHING
        self._run_began = 0.0
        self._run_steps = 0
        self._chunk: list[tuple[Request, int]] = []
        self._factor = self._next_factor = 1.0
        self._wakes = 0
        """Numbers the wake-ups: only the newest counts."""
        self._awake = False
        self._busy_since: float | None = None
        self._busy_s = 0.0
        self.oversized = 0
        """Admissions of a request that the whole memory was too small for, and that ran all the same."""

    # ------------------------------------------------------------------------------- from outside

    def submit(self, request: Request) -> None:
        """Take a request; it joins at the next boundary after its arrival, where memory allows."""
        if self._busy_since is None:
            self._busy_since = self._agenda.now
        if self._rules.request_s:
            self._coming[request] = None
            self._agenda.after(self._rules.request_s, partial(self._arrive, request))
        else:
            self._arrive(request)

    def stop(self, request: Request) -> None:
        """Let go of a request soon; what it has sampled by now is kept. One that is over is left alone."""
        if request.stage in (Stage.OVER, Stage.STOPPING):
            return
        self._keep(request)
        request.enter(Stage.STOPPING, self._agenda.now)
        self._agenda.after(self._rules.abort_s, partial(self._stop_due, request))

    def set_factor(self, factor: float) -> None:
        """From the next boundary on everything takes ``factor`` times as long."""
        self._next_factor = factor
        self._look_up()

    def die(self) -> list[Request]:
        """Lose everything. Returns the requests that were here, each with the tokens that it keeps."""
        lost = [*self._batch, *self._prefilling, *self._arrived, *self._coming]
        for request in lost:
            self._keep(request)
            request.entry = None
            request.enter(Stage.OVER, self._agenda.now)
        self.cache = self._empty_cache()
        self._batch.clear()
        for held in (self._coming, self._arrived, self._prefilling, self._stops, self._chunk):
            held.clear()
        self._run = _Run.NOTHING
        self._wakes += 1
        self._rest()
        return lost

    @property
    def busy_s(self) -> float:
        """Time with at least one request, so far."""
        return self._busy_s + (0.0 if self._busy_since is None else self._agenda.now - self._busy_since)

    def _empty_cache(self) -> PrefixCache:
        return PrefixCache(self._speed.prefix_capacity_tokens, share_running=self._rules.share_running)

    # ----------------------------------------------------------------------------------- the loop

    def _arrive(self, request: Request) -> None:
        self._coming.pop(request, None)
        if request.stage is Stage.OVER:
            return  # it was stopped or lost on its way
        self._arrived.append(request)
        self._look_up()

    def _look_up(self) -> None:
        """Something changed: wake at the next boundary, which is now where nothing runs."""
        if self._awake:
            return
        if self._run is _Run.NOTHING:
            self._wake_at(self._agenda.now)
        elif self._run is _Run.DECODE:
            steps = max(0, math.ceil(self._steps_done() - _EPSILON))
            if steps < self._run_steps:
                self._run_steps = steps
                self._wake_at(self._run_began + self._batch.seconds(steps) * self._factor)

    def _wake_at(self, time: float) -> None:
        self._wakes += 1
        self._agenda.at(time, partial(self._wake, self._wakes))

    def _wake(self, number: int) -> None:
        if number != self._wakes:
            return
        self._awake = True
        run, self._run = self._run, _Run.NOTHING
        if run is _Run.DECODE:
            self._advance(self._run_steps)
        elif run is _Run.CHUNK:
            self._end_chunk()
        self._let_go()
        self._factor = self._next_factor
        self._admit()
        if self._prefilling:
            self._begin_chunk()
        elif self._batch:
            self._begin_decoding()
        elif not self._arrived and not self._coming:
            self._rest()
        self._awake = False

    def _rest(self) -> None:
        if self._busy_since is not None:
            self._busy_s += self._agenda.now - self._busy_since
            self._busy_since = None

    # ------------------------------------------------------------------------- prefill and decode

    def _admit(self) -> None:
        while self._arrived and self._fits(self._arrived[0]):
            request = self._arrived.popleft()
            key = request.trajectory_id, request.group_id
            cached = self.cache.cached_tokens(*key, request.prompt_tokens)
            # The last token is always computed: it is what the next one is sampled from.
            cached = min(cached, request.context_tokens - 1)
            if not request.computed_tokens:
                request.cached_tokens = cached
            request.entry = self.cache.begin(*key, request.prompt_tokens, request.context_tokens)
            request.left_to_prefill = request.context_tokens - cached
            request.begun = False
            if request.kept_tokens is None:
                request.enter(Stage.PREFILLING, self._agenda.now)
            self._prefilling.append(request)
        # Whoever is left waits for memory, and not just for the iteration that ran.
        for request in reversed(self._arrived):
            if request.stage is Stage.WAITING:
                break
            if request.stage is Stage.SENT:
                request.enter(Stage.WAITING, self._agenda.now)

    def _fits(self, request: Request) -> bool:
        capacity = self._speed.kv_capacity_tokens
        if capacity is None:
            return True
        needed = self.cache.needed_tokens(request.trajectory_id, request.group_id, request.context_tokens)
        running = len(self._batch) + len(self._prefilling)
        if not running:
            self.oversized += needed > capacity
            return True
        return self.cache.pinned_tokens + needed + RETRACT_STEPS * (running + 1) <= capacity

    def _begin_chunk(self) -> None:
        budget = self._rules.chunk_tokens
        seconds = 0.0
        for request in self._prefilling:
            tokens = min(budget, request.left_to_prefill)
            self._chunk.append((request, tokens))
            if not request.begun:
                request.begun = True
                seconds += self._rules.prefill_request_s
            budget -= tokens
            if not budget:
                break
        tokens = self._rules.chunk_tokens - budget
        # One pass over the weights serves prompts and decodes alike.
        seconds += max(self._speed.curves.weights_s, tokens / self._speed.prefill_tokens_per_s)
        if self._mixed and self._batch:
            seconds += self._batch.added_s()
        self._run = _Run.CHUNK
        self._wake_at(self._agenda.now + seconds * self._factor)

    def _end_chunk(self) -> None:
        chunk, self._chunk = self._chunk, []
        if self._mixed:
            self._advance(1)
        for request, tokens in chunk:
            position = request.context_tokens - request.left_to_prefill
            request.computed_tokens += tokens
            request.recomputed_tokens += max(0, min(request.known_tokens - position, tokens))
            request.left_to_prefill -= tokens
            if not request.left_to_prefill:
                self._prefilling.popleft()
                if request.stage is Stage.PREFILLING:
                    request.enter(Stage.DECODING, self._agenda.now)
                self._batch.join(request)
                if request.output_tokens == 1:
                    self._leave(request)

    def _begin_decoding(self) -> None:
        room = self._room_steps()
        if room < 1:
            while room < RETRACT_STEPS and len(self._batch) > 1:
                self._retract()
                room = self._room_steps()
        steps = self._batch.iterations_to_end()
        if len(self._batch) > 1:
            steps = min(steps, room)
        self._run = _Run.DECODE
        self._run_began = self._agenda.now
        self._run_steps = steps
        self._wake_at(self._run_began + self._batch.seconds(steps) * self._factor)

    def _advance(self, steps: int) -> None:
        """So many decoding iterations are over; whoever reached its end leaves."""
        self.cache.grow(steps * len(self._batch))
        self._batch.advance(steps)
        while (request := self._batch.finished()) is not None:
            self._leave(request)

    def _steps_done(self) -> float:
        """Decoding iterations, and what part of the next, since the last boundary."""
        if self._run is not _Run.DECODE:
            return 0.0
        return self._batch.iterations_within((self._agenda.now - self._run_began) / self._factor)

    # ------------------------------------------------------------------------------ ways to leave

    def _leave(self, request: Request) -> None:
        """It is over: complete, or stopped."""
        if request.kept_tokens is None:
            self._close_stint(request)
        self._take_out(request)
        request.enter(Stage.OVER, self._agenda.now)
        self._ended(request)

    def _let_go(self) -> None:
        """Of those that were told to stop."""
        for request in self._stops:
            if request.stage is not Stage.OVER:
                self._leave(request)
        self._stops.clear()

    def _stop_due(self, request: Request) -> None:
        if request.stage is not Stage.OVER:
            self._stops.append(request)
            self._look_up()

    def _retract(self) -> None:
        """Memory runs out: who began last gives its own up, and goes on when there is room again."""
        request = self._batch.youngest
        tokens = self._batch.tokens(request)
        if request.kept_tokens is None:
            self._close_stint(request)
            request.enter(Stage.WAITING, self._agenda.now)
        self._take_out(request)
        request.known_tokens = max(request.known_tokens, request.context_tokens + tokens - 1)
        request.context_tokens += tokens
        request.output_tokens -= tokens
        self._arrived.appendleft(request)

    def _keep(self, request: Request) -> None:
        """It ends with the tokens that it has at this moment, the iteration that runs not included."""
        if request.kept_tokens is None:
            self._close_stint(request, math.floor(self._steps_done() + _EPSILON))
            request.kept_tokens = request.sampled_tokens

    def _close_stint(self, request: Request, further_tokens: int = 0) -> None:
        """Count what it has sampled since it was last admitted, and what that would have taken alone."""
        if request.decoding:
            tokens = self._batch.tokens(request) + further_tokens
            request.sampled_tokens += tokens
            begin = request.context_tokens + 1
            request.base_s += self._speed.curves.seconds(1, begin, tokens - 1) if tokens > 1 else 0.0

    def _take_out(self, request: Request) -> None:
        """Free its place and unpin its memory."""
        grown = 0
        if request.decoding:
            grown = self._batch.tokens(request) - 1
            self._batch.leave(request)
        elif request.entry is not None:
            self._prefilling.remove(request)
        elif request in self._arrived:
            self._arrived.remove(request)
        else:
            self._coming.pop(request, None)
        if request.entry is not None:
            # Of the token sampled last, nothing is computed yet.
            computed = request.context_tokens - request.left_to_prefill
            self.cache.end(request.entry, computed + grown, grown)
            request.entry = None

    def _room_steps(self) -> int:
        """Decoding iterations until memory runs out."""
        capacity = self._speed.kv_capacity_tokens
        if capacity is None:
            return _NO_LIMIT
        return (capacity - self.cache.pinned_tokens) // len(self._batch)
