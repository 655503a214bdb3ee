"""A simulated inference engine: continuous batching, chunked prefill, a prefix cache, in virtual time.

An engine iterates. One iteration either computes a chunk of prompts or gives every running generation one
token, or both (:class:`~heddle.simulate.hardware.PrefillMode`). Requests join, leave and are interrupted
between iterations only. A prompt's last chunk brings its first token.

All running generations advance together, so the engine counts iterations and keeps a heap of the counts at
which generations end: an event costs O(log n), however many tokens lie between two events. A run of decoding
iterations is cut short at the next boundary when something arrives.
"""

from __future__ import annotations

import heapq
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

RETRACT_STEPS = 20
"""Memory for so many further tokens of every running generation is freed when it runs out, and must be there
before another one is admitted; SGLang's number."""

_EPSILON = 1e-9
"""Steps: what rounding may make of a whole number."""


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
        self._curves = speed.curves
        self._rules = rules
        self._mixed = rules.prefill is PrefillMode.MIXED
        self._ended = ended
        self.cache = PrefixCache(speed.prefix_capacity_tokens)
        self._coming: dict[Request, None] = {}
        self._arrived: deque[Request] = deque()
        self._prefilling: deque[Request] = deque()
        self._decoding: dict[Request, None] = {}
        """In the order in which they began."""
        self._marks: list[tuple[int, int, Request]] = []
        self._marked = 0
        self._iterations = 0
        self._context_sum = 0
        """Tokens of all decoding generations."""
        self._stops: list[Request] = []
        """To be let go at the next boundary."""
        self._run = _Run.NOTHING
        self._run_began = 0.0
        self._run_steps = 0
        self._run_context = 0.0
        """Mean context when the run began."""
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
        request.kept_tokens = self.sampled_tokens(request)
        if request.decoding:
            request.base_s += self._alone_s(request, request.kept_tokens - request.sampled_tokens)
        request.enter(Stage.STOPPING, self._agenda.now)
        self._agenda.after(self._rules.abort_s, partial(self._stop_due, request))

    def sampled_tokens(self, request: Request) -> int:
        """So far, the iteration that runs not included."""
        if request.kept_tokens is not None:
            return request.kept_tokens
        if not request.decoding:
            return request.sampled_tokens
        return (
            request.sampled_tokens + self._stint_tokens(request) + math.floor(self._steps_done() + _EPSILON)
        )

    def set_factor(self, factor: float) -> None:
        """From the next boundary on everything takes ``factor`` times as long."""
        self._next_factor = factor
        self._look_up()

    def die(self) -> list[Request]:
        """Lose everything. Returns the requests that were here, each with the tokens that it keeps."""
        now = self._agenda.now
        lost = [*self._decoding, *self._prefilling, *self._arrived, *self._coming]
        for request in lost:
            kept = self.sampled_tokens(request)
            if request.decoding and request.kept_tokens is None:
                request.base_s += self._alone_s(request, kept - request.sampled_tokens)
            request.kept_tokens = kept
            request.entry = None
            request.decoding = False
            request.enter(Stage.OVER, now)
        self.cache = PrefixCache(self._speed.prefix_capacity_tokens)
        for held in (self._coming, self._arrived, self._prefilling, self._decoding):
            held.clear()
        for listed in (self._marks, self._stops, self._chunk):
            listed.clear()
        self._context_sum = 0
        self._run = _Run.NOTHING
        self._wakes += 1
        self._rest()
        return lost

    @property
    def busy_s(self) -> float:
        """Time with at least one request, so far."""
        return self._busy_s + (0.0 if self._busy_since is None else self._agenda.now - self._busy_since)

    # --------------------------------------------------------------------------------- iterations

    def _arrive(self, request: Request) -> None:
        self._coming.pop(request, None)
        if request.stage is Stage.OVER:
            return  # it was stopped or lost on its way
        if request.stage is Stage.SENT:
            request.enter(Stage.WAITING, self._agenda.now)
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
                self._wake_at(self._run_began + self._decode_s(steps))

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
        for request in self._stops:
            if request.stage is not Stage.OVER:
                self._leave(request)
        self._stops.clear()
        self._factor = self._next_factor
        self._admit()
        if self._prefilling:
            self._begin_chunk()
        elif self._decoding:
            self._begin_decoding()
        elif not self._arrived and not self._coming:
            self._rest()
        self._awake = False

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
            if request.stage is Stage.WAITING:
                request.enter(Stage.PREFILLING, self._agenda.now)
            self._prefilling.append(request)

    def _fits(self, request: Request) -> bool:
        capacity = self._speed.kv_capacity_tokens
        if capacity is None:
            return True
        needed = self.cache.needed_tokens(request.trajectory_id, request.group_id, request.context_tokens)
        running = len(self._decoding) + len(self._prefilling)
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
        weights_s = self._curves.weights_s
        seconds += max(weights_s, tokens / self._speed.prefill_tokens_per_s)
        batch = len(self._decoding)
        if self._mixed and batch:
            seconds += max(0.0, self._curves.step_s(batch, self._context_sum / batch) - weights_s)
        self._run = _Run.CHUNK
        self._wake_at(self._agenda.now + seconds * self._factor)

    def _end_chunk(self) -> None:
        chunk, self._chunk = self._chunk, []
        if self._mixed:
            self._advance(1)
        now = self._agenda.now
        for request, tokens in chunk:
            position = request.context_tokens - request.left_to_prefill
            request.computed_tokens += tokens
            request.recomputed_tokens += max(0, min(request.known_tokens - position, tokens))
            request.left_to_prefill -= tokens
            if not request.left_to_prefill:
                self._prefilling.popleft()
                self._begin_generation(request, now)

    def _begin_generation(self, request: Request, now: float) -> None:
        """Its first token has just been sampled."""
        if request.stage is Stage.PREFILLING:
            request.enter(Stage.DECODING, now)
        request.decoding = True
        request.start_mark = self._iterations
        request.finish_mark = self._iterations + request.output_tokens - 1
        self._decoding[request] = None
        self._context_sum += request.context_tokens + 1
        if request.finish_mark == self._iterations:
            self._leave(request)
        else:
            self._marked += 1
            heapq.heappush(self._marks, (request.finish_mark, self._marked, request))

    def _begin_decoding(self) -> None:
        room = self._room_steps()
        if room < 1:
            while room < RETRACT_STEPS and len(self._decoding) > 1:
                self._retract()
                room = self._room_steps()
        while not self._is_current(self._marks[0]):
            heapq.heappop(self._marks)
        steps = self._marks[0][0] - self._iterations
        if len(self._decoding) > 1:
            steps = min(steps, room)
        self._run = _Run.DECODE
        self._run_began = self._agenda.now
        self._run_steps = steps
        self._run_context = self._context_sum / len(self._decoding)
        self._wake_at(self._run_began + self._decode_s(steps))

    def _advance(self, steps: int) -> None:
        """So many decoding iterations are over; whoever reached its end leaves."""
        batch = len(self._decoding)
        self._iterations += steps
        self._context_sum += steps * batch
        self.cache.grow(steps * batch)
        while self._marks and self._marks[0][0] <= self._iterations:
            mark = heapq.heappop(self._marks)
            if self._is_current(mark):
                self._leave(mark[2])

    def _leave(self, request: Request) -> None:
        """It is over: complete, or stopped."""
        now = self._agenda.now
        stint = self._stint_tokens(request) if request.decoding else 0
        if request.stage is Stage.DECODING:
            request.base_s += self._alone_s(request, stint)
        self._take_out(request, stint)
        request.sampled_tokens += stint
        request.enter(Stage.OVER, now)
        self._ended(request)

    def _take_out(self, request: Request, stint_tokens: int) -> None:
        """Free its place and unpin its memory."""
        if request.decoding:
            del self._decoding[request]
            self._context_sum -= request.context_tokens + stint_tokens
            request.decoding = False
        elif request.entry is not None:
            self._prefilling.remove(request)
        elif request in self._arrived:
            self._arrived.remove(request)
        else:
            self._coming.pop(request, None)
        if request.entry is not None:
            # Of the token sampled last, nothing is computed yet.
            computed = request.context_tokens - request.left_to_prefill
            grown = max(0, stint_tokens - 1)
            self.cache.end(request.entry, computed + grown, grown)
            request.entry = None

    def _retract(self) -> None:
        """Memory runs out: who began last gives its own up, and goes on when there is room again."""
        request = next(reversed(self._decoding))
        stint = self._stint_tokens(request)
        if request.stage is Stage.DECODING:
            request.base_s += self._alone_s(request, stint)
            request.enter(Stage.WAITING, self._agenda.now)
        self._take_out(request, stint)
        request.known_tokens = max(request.known_tokens, request.context_tokens + stint - 1)
        request.sampled_tokens += stint
        request.context_tokens += stint
        request.output_tokens -= stint
        self._arrived.appendleft(request)

    def _stop_due(self, request: Request) -> None:
        if request.stage is not Stage.OVER:
            self._stops.append(request)
            self._look_up()

    def _rest(self) -> None:
        if self._busy_since is not None:
            self._busy_s += self._agenda.now - self._busy_since
            self._busy_since = None

    # ------------------------------------------------------------------------------------ numbers

    def _is_current(self, mark: tuple[int, int, Request]) -> bool:
        """Not the mark of one that was stopped or retracted."""
        return mark[2].decoding and mark[2].finish_mark == mark[0]

    def _stint_tokens(self, request: Request) -> int:
        """Sampled since it was last admitted, as of the last boundary."""
        return 1 + self._iterations - request.start_mark

    def _alone_s(self, request: Request, tokens: int) -> float:
        """What these tokens, the first not included, take with nobody else in the batch."""
        return self._curves.seconds(1, request.context_tokens + 1, tokens - 1) if tokens > 1 else 0.0

    def _room_steps(self) -> int:
        """Decoding iterations until memory runs out."""
        capacity, batch = self._speed.kv_capacity_tokens, len(self._decoding)
        if capacity is None:
            return 1 << 60
        return (capacity - self.cache.pinned_tokens) // batch

    def _steps_done(self) -> float:
        """Decoding iterations, and what part of the next, since the last boundary."""
        if self._run is not _Run.DECODE:
            return 0.0
        elapsed = (self._agenda.now - self._run_began) / self._factor
        return self._curves.steps_within(len(self._decoding), self._run_context, elapsed)

    def _decode_s(self, steps: int) -> float:
        return self._curves.seconds(len(self._decoding), self._run_context, steps) * self._factor
