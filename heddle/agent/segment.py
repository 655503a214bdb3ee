"""One request to an engine on behalf of a step, and what of its answer is the step's own.

A step that is interrupted goes on with another request, perhaps elsewhere. Whatever the engine of the earlier
one says after that is late: it is counted and touches nothing.
"""

from __future__ import annotations

import asyncio
import secrets
from array import array
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from heddle.agent.answers import garbage_in_chunk
from heddle.agent.order import TrajectoryOrder
from heddle.agent.packed import version_runs
from heddle.agent.ports import Engine, TokenChunk
from heddle.errors import EngineError, EngineTimeout, EngineUnavailable
from heddle.types import InterruptReason

ABORT_DEADLINE_S = 30.0
"""An engine that has not let go by then is left to its own deadlines; the slot stays taken meanwhile."""


class SampledArrays(NamedTuple):
    """What a step has sampled; arrays of equal length."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    version_runs: list[tuple[int, int]]
    """Weight versions, each with the length of its run."""


@dataclass(slots=True)
class SampledTokens:
    """What a step has sampled so far. Arrays of equal length."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    weight_versions: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.token_ids)

    def extend(self, chunk: TokenChunk) -> None:
        self.token_ids.extend(chunk.token_ids)
        self.logprobs.extend(chunk.logprobs)
        self.weight_versions.extend([chunk.weight_version] * len(chunk.token_ids))

    def arrays(self) -> SampledArrays:
        """The same, for those who keep it."""
        return SampledArrays(
            array("i", self.token_ids), array("d", self.logprobs), version_runs(self.weight_versions)
        )

    def drop_after(self, length: int) -> None:
        del self.token_ids[length:], self.logprobs[length:], self.weight_versions[length:]


@dataclass(slots=True)
class Segment:
    """What is known of a running request while it streams."""

    started: float
    request_id: str | None = None
    """While the engine has it."""
    first_token_at: float | None = None
    base: int = 0
    """Tokens that the step had when the segment began."""
    garbage: str | None = None
    """What came that cannot be tokens of a model; nothing of the segment is kept then."""

    def take(self, chunk: TokenChunk, sampled: SampledTokens, now: float) -> bool:
        """Add what came to what was ``sampled``. False where the request is over: the tokens are late."""
        if self.request_id is None:
            return False
        if self.garbage is not None:
            return True
        self.garbage = garbage_in_chunk(chunk)
        if self.garbage is None:
            self.first_token_at = now if self.first_token_at is None else self.first_token_at
            sampled.extend(chunk)
        return True


def request_id(order: TrajectoryOrder, step_index: int, number: int) -> str:
    """Names the ``number``-th request of a step, for logs and for aborts; never the same twice."""
    return f"{order.trajectory_id}.{order.attempt}.{step_index}.{number}-{secrets.token_hex(4)}"


async def abort(engine: Engine, request_id: str) -> None:
    """One that fails or takes too long changes nothing: the generation ends in its own way."""
    with suppress(EngineError, TimeoutError):
        async with asyncio.timeout(ABORT_DEADLINE_S):
            await engine.abort(request_id)


def interrupt_reason(failure: EngineError) -> InterruptReason:
    """What the control plane is told of a request that failed so."""
    if isinstance(failure, EngineTimeout):
        return InterruptReason.ENGINE_TIMEOUT
    lost = isinstance(failure, EngineUnavailable)
    return InterruptReason.WORKER_LOST if lost else InterruptReason.ENGINE_ERROR
