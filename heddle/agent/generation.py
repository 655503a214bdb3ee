"""One step's generation: as many segments as it takes, on as many workers as it takes.

A segment ends early when its engine dies, hangs or fails. What was sampled is kept and the next segment
is sent prompt + partial output, so that the step is one logical generation under one token budget.
A step under a grammar is the exception: it cannot go on in the middle of a JSON object, so such a step
starts afresh and its partial tokens are dropped.

A preemption is an interruption by order: the engine's request is aborted, which returns what there is. It is
no failure, so it is not counted among those and nothing is waited for but the next grant. The same holds
where the engine itself gave the slot away, except that it gets a moment before it is asked again.
"""

from __future__ import annotations

import asyncio
import zlib
from functools import partial

from heddle.agent.answers import garbage_in_answer
from heddle.agent.boundary import TrajectoryEnded
from heddle.agent.clock import TrajectoryClock
from heddle.agent.link import Ending, Grant
from heddle.agent.order import LoopServices, TrajectoryOrder
from heddle.agent.ports import Generation, GenerationRequest, TokenChunk
from heddle.agent.segment import SampledTokens, Segment, abort, interrupt_reason, request_id
from heddle.agent.sessions import KeptSessions
from heddle.agent.tokens import TokenBuffer
from heddle.control.events import GenerationInterrupted, StepGenerated
from heddle.errors import EngineError, EngineInterrupted, EngineRejected, EngineUnavailable
from heddle.records import PredictionRecord, StepRecord
from heddle.store.gates import sampled_as_asked
from heddle.types import FinishReason, InterruptReason, SamplingParams, StopReason

RETRY_BACKOFF_S = 0.1
"""First pause after an engine failed; doubles. Gives its supervisor time to notice a dead process
before the same worker is tried again."""

MAX_BACKOFF_S = 5.0


class StepGeneration:
    """Single use: ``await run()`` once. Between its awaits the arrays always have equal length."""

    def __init__(
        self,
        services: LoopServices,
        order: TrajectoryOrder,
        clock: TrajectoryClock,
        buffer: TokenBuffer,
        sessions: KeptSessions,
        *,
        step_index: int,
        max_new_tokens: int,
        previous: StepRecord | None = None,
    ) -> None:
        self._services = services
        self._order = order
        self._clock = clock
        self._buffer = buffer
        self._sessions = sessions
        self._step_index = step_index
        self._max_new_tokens = max_new_tokens
        self._previous = previous
        self._resumable = order.prompt.resumable
        self._finish = FinishReason.ABORT
        self._interruptions = 0
        self._segments = 0
        self._cached = 0
        self._queue_s = 0.0
        self._prefill_s = 0.0
        self._decode_s = 0.0
        self._grant: Grant | None = None
        self._segment = Segment(0.0)
        self._preemptions = 0
        self._echo: SamplingParams | None = None
        self._stopping = False
        """It was told to give its slot back, and has not done so yet."""
        self._abort: asyncio.Task[None] | None = None
        self._waits_preempted = False
        self.sampled = SampledTokens()
        self.prediction: PredictionRecord | None = None

    @property
    def started(self) -> bool:
        """Whether an engine was ever asked."""
        return self._segments > 0

    def preempt(self) -> None:
        """Give the slot back as soon as the engine lets go. The step goes on with the next grant."""
        self._stopping = True
        if self._segment.request_id is not None and self._abort is None and self._grant is not None:
            aborting = abort(self._grant.engine, self._segment.request_id)
            self._abort = asyncio.create_task(aborting, name=f"preempt {self._order.trajectory_id}")

    async def run(self) -> None:
        """Generate until the step is complete. Raises ``TrajectoryEnded`` where it cannot be."""
        while True:
            grant = await self._wait_for_grant()
            failure = None if self._stopping else await self._run_segment(grant)
            if self._is_over(failure):
                self._post_generated(grant)
                return
            if failure is None or isinstance(failure, EngineInterrupted):
                await self._give_way(grant, RETRY_BACKOFF_S if failure else 0.0)
            else:
                await self._interrupt(grant, failure)
            self._stopping = False

    def _is_over(self, failure: EngineError | None) -> bool:
        """A segment that neither failed nor was preempted is a step's last."""
        return (failure is None and not self._stopping) or self._is_complete()

    async def _wait_for_grant(self) -> Grant:
        queued = self._clock.now()
        try:
            grant = await self._services.link.granted(self._order.trajectory_id)
        finally:
            waited = self._clock.now() - queued
            self._queue_s += waited
            if self._waits_preempted:
                self._clock.parts.preemption += waited
            else:
                self._clock.parts.queue += waited
        self._waits_preempted = False
        self._grant = grant
        self._segment = Segment(self._clock.now(), base=len(self.sampled))
        self._note_prediction(grant)
        return grant

    def _note_prediction(self, grant: Grant) -> None:
        prediction = grant.prediction
        if prediction is None or self.prediction is not None:
            return
        self.prediction = PredictionRecord(
            made_after_step=prediction.made_after_step,
            predicted_total_tokens=self._buffer.sampled_tokens + prediction.remaining_tokens,
            predicted_remaining_tokens=prediction.remaining_tokens,
            low_tokens=prediction.low_tokens,
            high_tokens=prediction.high_tokens,
            model=prediction.model,
        )

    async def _run_segment(self, grant: Grant) -> EngineError | None:
        """Returns the engine's failure, if it failed in a way that another segment can mend."""
        self._segments += 1
        request = self._request(grant)
        segment = Segment(self._clock.now(), request.request_id, base=len(self.sampled))
        self._segment = segment
        self._sessions.note(grant.engine)
        try:
            generation = await grant.engine.generate(request, partial(self._on_tokens, segment))
        except EngineRejected as exc:
            self._clock.parts.engine_stall += self._clock.now() - self._segment.started
            raise TrajectoryEnded(Ending(StopReason.ENGINE_FAILED, str(exc))) from exc
        except EngineError as exc:
            self._clock.parts.engine_stall += self._clock.now() - self._segment.started
            return self._garbled(grant) or exc
        except asyncio.CancelledError:
            self._account_cancelled()
            raise
        finally:
            await self._end_segment()
        return self._account(grant, generation)

    async def _end_segment(self) -> None:
        """The request is over, so an abort that is under way has nothing left to wait for."""
        self._segment.request_id = None
        abort, self._abort = self._abort, None
        if abort is not None:
            abort.cancel()
            await asyncio.wait({abort})

    def _request(self, grant: Grant) -> GenerationRequest:
        order, engine = self._order, self._services.engine
        return GenerationRequest(
            request_id=request_id(order, self._step_index, self._segments),
            prompt_ids=self._buffer.context(order.prompt.forced_ids, self.sampled.token_ids),
            max_new_tokens=self._max_new_tokens - len(self.sampled),
            sampling=self._sampling(),
            priority=grant.priority,
            json_schema=order.prompt.json_schema,
            ignore_end=order.prompt.step_tokens is not None,
            deadline_s=engine.step_deadline_s,
            first_token_deadline_s=engine.token_deadline_s,
            session_id=self._sessions.session_id,
        )

    def _sampling(self) -> SamplingParams:
        """The batch's parameters with a seed of this segment's own, reproducible from the batch seed."""
        sampling = self._order.sampling
        if sampling.seed is None:
            return sampling
        label = f"{sampling.seed}/{self._order.trajectory_id}/{self._step_index}/{len(self.sampled)}"
        return SamplingParams(
            sampling.temperature,
            sampling.top_p,
            sampling.top_k,
            sampling.min_p,
            zlib.crc32(label.encode()) & 0x7FFFFFFF,
        )

    def _on_tokens(self, segment: Segment, chunk: TokenChunk) -> None:
        if not segment.take(chunk, self.sampled, self._clock.now()):
            self._services.observer.came_late("tokens")

    def _account(self, grant: Grant, generation: Generation) -> EngineError | None:
        fresh = len(self.sampled) - self._segment.base
        if self._segment.garbage is None:
            room = self._max_new_tokens - self._segment.base
            self._segment.garbage = garbage_in_answer(generation, fresh, room)
        if garbled := self._garbled(grant):
            return garbled
        self._keep_echo(generation.echoed_sampling)
        versions = generation.weight_versions or [generation.weight_version] * fresh
        self.sampled.weight_versions[self._segment.base :] = versions
        self._cached += generation.cached_tokens
        self._prefill_s += generation.prefill_s
        self._decode_s += generation.decode_s
        ledger = self._services.ledger
        ledger.observe_decode(grant.worker_id, fresh, generation.decode_s)
        base = ledger.decode_base_s(grant.worker_id, fresh)
        again_s = generation.prefill_s * self._share_computed_again(grant, generation)
        self._clock.add_generation(generation.prefill_s - again_s, generation.decode_s, base)
        self._clock.parts.migration += again_s
        self._finish = generation.finish_reason
        if generation.finish_reason is not FinishReason.ABORT:
            self._stopping = False  # it was done before the engine heard of the abort
            return None
        if not self._stopping:
            return EngineUnavailable(f"{grant.worker_id} aborted the generation")
        spent = self._clock.now() - self._segment.started - generation.prefill_s - generation.decode_s
        self._clock.parts.preemption += max(0.0, spent)
        return None

    def _share_computed_again(self, grant: Grant, generation: Generation) -> float:
        """Of what the engine computed of the prompt, the share that the worker before a move had."""
        previous = self._previous
        if previous is None or self._segments > 1 or previous.worker_id == grant.worker_id:
            return 0.0
        known = previous.prompt_tokens + previous.output_tokens
        computed = generation.prompt_tokens - generation.cached_tokens
        return max(0, known - generation.cached_tokens) / computed if computed > 0 else 0.0

    def _garbled(self, grant: Grant) -> EngineUnavailable | None:
        """Drop a segment of which something cannot be true."""
        if self._segment.garbage is None:
            return None
        self.sampled.drop_after(self._segment.base)
        return EngineUnavailable(f"{grant.worker_id} {self._segment.garbage}")

    def _keep_echo(self, echo: SamplingParams | None) -> None:
        """Of several segments, the one that was sampled otherwise than was asked for."""
        if self._echo is None or not sampled_as_asked(self._order.sampling, echo):
            self._echo = echo or self._echo

    def _account_cancelled(self) -> None:
        now, segment = self._clock.now(), self._segment
        first = now if segment.first_token_at is None else segment.first_token_at
        self._prefill_s += first - segment.started
        self._decode_s += now - first
        self._clock.add_generation(first - segment.started, now - first, now - first)

    def _is_complete(self) -> bool:
        """An engine can die between a step's last token and its farewell; then nothing is missing."""
        if not self._resumable or not self.sampled.token_ids:
            return False
        if self.sampled.token_ids[-1] in self._services.tokenizer.end_ids:
            self._finish = FinishReason.STOP
            return True
        if len(self.sampled) >= self._max_new_tokens:
            self._finish = FinishReason.LENGTH
            return True
        return False

    def _post_generated(self, grant: Grant) -> None:
        forced = self._order.prompt.forced_ids
        self._services.link.post(
            StepGenerated(
                trajectory_id=self._order.trajectory_id,
                worker_id=grant.worker_id,
                step_index=self._step_index,
                prompt_tokens=len(self._buffer) + len(forced),
                cached_tokens=self._cached,
                output_tokens=len(self.sampled) - self._segment.base,
                forced_tokens=len(forced),
            )
        )

    async def _interrupt(self, grant: Grant, failure: EngineError) -> None:
        self._interruptions += 1
        if self._interruptions > self._services.engine.max_interruptions:
            detail = f"step {self._step_index} failed on {self._interruptions} engines, at last: {failure}"
            raise TrajectoryEnded(Ending(StopReason.ENGINE_FAILED, detail))
        self._keep_or_drop()
        await self._pause(min(MAX_BACKOFF_S, RETRY_BACKOFF_S * 2 ** (self._interruptions - 1)))
        self._post_interrupted(grant, interrupt_reason(failure))

    async def _pause(self, pause_s: float) -> None:
        paused = self._clock.now()
        try:
            await asyncio.sleep(pause_s)
        finally:
            self._clock.parts.engine_stall += self._clock.now() - paused

    async def _give_way(self, grant: Grant, pause_s: float) -> None:
        self._preemptions += 1
        self._waits_preempted = True
        self._keep_or_drop()
        await self._pause(pause_s)
        self._post_interrupted(grant, InterruptReason.PREEMPTED)

    def _post_interrupted(self, grant: Grant, reason: InterruptReason) -> None:
        self._services.link.post(
            GenerationInterrupted(
                trajectory_id=self._order.trajectory_id,
                worker_id=grant.worker_id,
                step_index=self._step_index,
                output_tokens=max(0, len(self.sampled) - self._segment.base),
                reason=reason,
            )
        )

    def _keep_or_drop(self) -> None:
        if not self._resumable:
            self.sampled.drop_after(0)

    def record(self) -> StepRecord:
        """The step so far, its tool calls not yet in it."""
        assert self._grant is not None, "a step that was never granted has no record"
        forced = self._order.prompt.forced_ids
        return StepRecord(
            step_index=self._step_index,
            worker_id=self._grant.worker_id,
            tp_degree=self._grant.tp_degree,
            prompt_tokens=len(self._buffer) + len(forced),
            cached_tokens=self._cached,
            output_tokens=len(self.sampled),
            forced_tokens=len(forced),
            finish_reason=self._finish,
            weight_version=self.sampled.weight_versions[-1] if self.sampled.weight_versions else 0,
            constrained=self._order.prompt.constrained,
            segments=self._segments,
            preemptions=self._preemptions,
            tool_calls=(),
            queue_s=self._queue_s,
            prefill_s=self._prefill_s,
            decode_s=self._decode_s,
            echoed_sampling=self._echo,
        )
