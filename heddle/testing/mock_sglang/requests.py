"""One request in a mock: what was asked, what came of it, and what its client has been shown."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import Enum

from heddle.testing.mock_sglang.cache import Match

NON_STREAM_FLUSH = 50
"""A scheduler shows the tokens of a request that does not stream in portions of so many."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A body of ``POST /generate`` that was found good."""

    rid: str
    input_ids: list[int]
    max_new_tokens: int
    greedy: bool
    ignore_eos: bool
    stop_ids: frozenset[int]
    bias: dict[int, float]
    stream: bool
    return_logprob: bool
    priority: int | None
    namespace: str
    session_id: str | None
    script: list[int] | None = None


class AbortKind(Enum):
    """Who ended a request, which shows in the reply."""

    NONE = 0
    WHILE_RUNNING = 1
    WHILE_WAITING = 2
    BY_SERVER = 3


@dataclass(slots=True)
class MockRequest:
    """Changed by the scheduler; read by the front end, which is told of each change by ``changed``."""

    asked: Asked
    priority: int
    received_at: float
    queued_at: float
    """When it joined the queue last."""
    state: int = 0
    """Checksum over everything before the next token."""
    output_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)
    shown: int = 0
    """Tokens that the front end may know of."""
    match: Match | None = None
    """Of its first prefill."""
    computed: int = 0
    """Tokens of the present prefill that are in the KV pool."""
    pages: list[int] = field(default_factory=list)
    held: int = 0
    """Tokens in the KV pool that are in no page yet."""
    retractions: int = 0
    to_abort: bool = False
    finish: dict[str, object] | None = None
    abort: AbortKind = AbortKind.NONE
    finished_at: float | None = None
    first_token_at: float | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def all_ids(self) -> list[int]:
        """What a prefill has to compute."""
        return self.asked.input_ids + self.output_ids

    def show(self) -> None:
        """Let the front end know of what there is, as often as a scheduler does."""
        count = len(self.output_ids)
        if not self.asked.stream and self.finish is None:
            count -= count % NON_STREAM_FLUSH
        if count != self.shown or self.finish is not None:
            self.shown = count
            self.changed.set()
