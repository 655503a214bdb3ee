"""One step's generation: as many segments as it takes, on as many workers as it takes.

A segment ends early when its engine dies, hangs or fails. What was sampled is kept and the next segment
is sent prompt + partial output, so that the step is one logical generation under one token budget.
A constrained step is the exception: a grammar cannot go on in the middle of a JSON object, so such a
step starts afresh and its partial tokens are dropped.
"""

from __future__ import annotations

import asyncio
import uuid
import zlib
from dataclasses import dataclass

from heddle.agent.boundary import TrajectoryEnded
from heddle.agent.clock import TrajectoryClock
from heddle.agent.link import Ending, Grant
from heddle.agent.order import LoopServices, TrajectoryOrder
from heddle.agent.ports import Generation, GenerationRequest, TokenChunk
from heddle.agent.tokens import TokenBuffer
from heddle.control.events import GenerationInterrupted, StepGenerated
from heddle.errors import EngineError, EngineRejected, EngineTimeout, EngineUnavailable
from heddle.records import PredictionRecord, StepRecord
from heddle.types import FinishReason, InterruptReason, SamplingParams, StopReason

RETRY_BACKOFF_S = 0.1
"""First pause after an engine failed; doubles. Gives its supervisor time to notice a dead process
before the same worker is tried again."""

MAX_BACKOFF_S = 5.0


@dataclass(slots=True)
class _Segment:
    """What is known of a running segment while it streams."""

    started: float
    first_token_at: float | None = None
    base: int = 0
    """Tokens that the step had when the segment began."""


class StepGeneration:
    """Single use: ``await run()`` once. Between its awaits the arrays always have equal length."""

    def __init__(
        self,
        services: LoopServices,
        order: TrajectoryOrder,
        clock: TrajectoryClock,
        buffer: TokenBuffer,
        *,
        step_index: int,
        max_new_tokens: int,
    ) -> None:
        self._services = services
        self._order = order
        self._clock = clock
        self._buffer = buffer
        self._step_index = step_index
        self._max_new_tokens = max_new_tokens
        self._constrained = order.prompt.json_schema is not None
        self._finish = FinishReason.ABORT
        self._interruptions = 0
        self._segments = 0
        self._cached = 0
        self._queue_s = 0.0
        self._prefill_s = 0.0
        self._decode_s = 0.0
        self._grant: Grant | None = None
        self._segment = _Segment(0.0)
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.weight_versions: list[int] = []
        self.prediction: PredictionRecord | None = None

    @property
    def started(self) -> bool:
        """Whether an engine was ever asked."""
        return self._segments > 0

    async def run(self) -> None:
        """Generate until the step is complete. Raises ``TrajectoryEnded`` where it cannot be."""
        while True:
            grant = await self._wait_for_grant()
            failure = await self._run_segment(grant)
            if failure is None or self._is_complete():
                self._post_generated(grant)
                return
            await self._interrupt(grant, failure)

    async def _wait_for_grant(self) -> Grant:
        queued = self._clock.now()
        try:
            grant = await self._services.link.granted(self._order.trajectory_id)
        finally:
            waited = self._clock.now() - queued
            self._queue_s += waited
            self._clock.parts.queue += waited
        self._grant = grant
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
        self._segment = _Segment(self._clock.now(), base=len(self.token_ids))
        try:
            generation = await grant.engine.generate(self._request(grant), self._on_tokens)
        except EngineRejected as exc:
            self._clock.parts.engine_stall += self._clock.now() - self._segment.started
            raise TrajectoryEnded(Ending(StopReason.ENGINE_FAILED, str(exc))) from exc
        except EngineError as exc:
            self._clock.parts.engine_stall += self._clock.now() - self._segment.started
            return exc
        except asyncio.CancelledError:
            self._account_cancelled()
            raise
        return self._account(grant, generation)

    def _request(self, grant: Grant) -> GenerationRequest:
        order, engine = self._order, self._services.engine
        return GenerationRequest(
            request_id=uuid.uuid4().hex,
            prompt_ids=self._buffer.context(order.prompt.forced_ids, self.token_ids),
            max_new_tokens=self._max_new_tokens - len(self.token_ids),
            sampling=self._sampling(),
            priority=grant.priority,
            json_schema=order.prompt.json_schema,
            deadline_s=engine.step_deadline_s,
            first_token_deadline_s=engine.token_deadline_s,
        )

    def _sampling(self) -> SamplingParams:
        """The batch's parameters with a seed of this segment's own, reproducible from the batch seed."""
        sampling = self._order.sampling
        if sampling.seed is None:
            return sampling
        label = f"{sampling.seed}/{self._order.trajectory_id}/{self._step_index}/{len(self.token_ids)}"
        return SamplingParams(
            sampling.temperature,
            sampling.top_p,
            sampling.top_k,
            sampling.min_p,
            zlib.crc32(label.encode()) & 0x7FFFFFFF,
        )

    def _on_tokens(self, chunk: TokenChunk) -> None:
        if self._segment.first_token_at is None:
            self._segment.first_token_at = self._clock.now()
        self.token_ids.extend(chunk.token_ids)
        self.logprobs.extend(chunk.logprobs)
        version = self.weight_versions[-1] if self.weight_versions else 0
        self.weight_versions.extend([version] * len(chunk.token_ids))

    def _account(self, grant: Grant, generation: Generation) -> EngineError | None:
        fresh = len(self.token_ids) - self._segment.base
        if fresh != len(generation.token_ids) or len(self.token_ids) != len(self.logprobs):
            self._drop_after(self._segment.base)
            return EngineUnavailable(
                f"{grant.worker_id} streamed {fresh} tokens of {len(generation.token_ids)}"
            )
        self.weight_versions[self._segment.base :] = [generation.weight_version] * fresh
        self._cached += generation.cached_tokens
        self._prefill_s += generation.prefill_s
        self._decode_s += generation.decode_s
        ledger = self._services.ledger
        ledger.observe_decode(grant.worker_id, fresh, generation.decode_s)
        base = ledger.decode_base_s(grant.worker_id, fresh)
        self._clock.add_generation(generation.prefill_s, generation.decode_s, base)
        self._finish = generation.finish_reason
        if generation.finish_reason is FinishReason.ABORT:
            return EngineUnavailable(f"{grant.worker_id} aborted the generation")
        return None

    def _account_cancelled(self) -> None:
        now, segment = self._clock.now(), self._segment
        first = now if segment.first_token_at is None else segment.first_token_at
        self._prefill_s += first - segment.started
        self._decode_s += now - first
        self._clock.add_generation(first - segment.started, now - first, now - first)

    def _is_complete(self) -> bool:
        """An engine can die between a step's last token and its farewell; then nothing is missing."""
        if self._constrained or not self.token_ids:
            return False
        if self.token_ids[-1] in self._services.tokenizer.end_ids:
            self._finish = FinishReason.STOP
            return True
        if len(self.token_ids) >= self._max_new_tokens:
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
                output_tokens=len(self.token_ids) - self._segment.base,
                forced_tokens=len(forced),
            )
        )

    async def _interrupt(self, grant: Grant, failure: EngineError) -> None:
        self._interruptions += 1
        if self._interruptions > self._services.engine.max_interruptions:
            detail = f"step {self._step_index} failed on {self._interruptions} engines, at last: {failure}"
            raise TrajectoryEnded(Ending(StopReason.ENGINE_FAILED, detail))
        if self._constrained:
            self._drop_after(0)
        pause = min(MAX_BACKOFF_S, RETRY_BACKOFF_S * 2 ** (self._interruptions - 1))
        paused = self._clock.now()
        try:
            await asyncio.sleep(pause)
        finally:
            self._clock.parts.engine_stall += self._clock.now() - paused
        self._services.link.post(
            GenerationInterrupted(
                trajectory_id=self._order.trajectory_id,
                worker_id=grant.worker_id,
                step_index=self._step_index,
                output_tokens=max(0, len(self.token_ids) - self._segment.base),
                reason=_interrupt_reason(failure),
            )
        )

    def _drop_after(self, length: int) -> None:
        del self.token_ids[length:], self.logprobs[length:], self.weight_versions[length:]

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
            output_tokens=len(self.token_ids),
            forced_tokens=len(forced),
            finish_reason=self._finish,
            weight_version=self.weight_versions[-1] if self.weight_versions else 0,
            constrained=self._constrained,
            segments=self._segments,
            preemptions=0,
            tool_calls=(),
            queue_s=self._queue_s,
            prefill_s=self._prefill_s,
            decode_s=self._decode_s,
        )


def _interrupt_reason(failure: EngineError) -> InterruptReason:
    if isinstance(failure, EngineTimeout):
        return InterruptReason.ENGINE_TIMEOUT
    if isinstance(failure, EngineUnavailable):
        return InterruptReason.WORKER_LOST
    return InterruptReason.ENGINE_ERROR
