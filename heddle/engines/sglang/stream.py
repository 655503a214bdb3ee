"""One generation's events: read from bytes, and accounted for token by token."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field

from heddle.agent.ports import TokenChunk
from heddle.engines.sglang.protocol import (
    Finish,
    StreamEvent,
    error_of_abort,
    error_of_event,
    parse_event,
    version_number,
)
from heddle.errors import EngineUnavailable
from heddle.types import CacheSources

MAX_LINE_BYTES = 1 << 26
"""A server that repeats everything in every event sends 100 bytes per token."""

_END = b"[DONE]"


async def read_events(chunks: AsyncIterator[bytes]) -> AsyncGenerator[StreamEvent, None]:
    """Parse server-sent events up to the final one; comments and blank lines are skipped.

    Raises ``EngineUnavailable`` on anything that is not such a stream, and where it ends early.
    """
    pending: list[bytes] = []
    pending_bytes = 0
    async for chunk in chunks:
        head, newline, tail = chunk.rpartition(b"\n")
        if newline:
            for line in b"".join([*pending, head]).split(b"\n"):
                kind, _, value = line.strip().partition(b":")
                if kind == b"data":
                    value = value.strip()
                    if value == _END:
                        return
                    yield parse_event(value)
                elif kind:
                    raise EngineUnavailable(f"the engine's stream is not one of events: {line[:80]!r}")
            pending, pending_bytes = [], 0
        pending.append(tail)
        pending_bytes += len(tail)
        if pending_bytes > MAX_LINE_BYTES:
            raise EngineUnavailable(f"the engine sent a line of more than {MAX_LINE_BYTES} bytes")
    raise EngineUnavailable("the engine ended its stream before the generation")


@dataclass(slots=True)
class TokenAccount:
    """What a stream has given so far. The arrays always have equal length."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    weight_versions: list[int] = field(default_factory=list)
    finish: Finish | None = None
    prompt_tokens: int | None = None
    cached_tokens: int = 0
    cache_sources: CacheSources | None = None
    retractions: int = 0
    version: int | None = None
    """Of the weights, as the server named them last."""

    def take(self, event: StreamEvent) -> TokenChunk | None:
        """Account for one event; returns the tokens that are new with it, if any.

        Raises ``EngineUnavailable`` where ids, logprobs and the server's own count do not agree: a
        trajectory with a hole must not reach a trainer. Raises the error that an error event means, or
        an abort of the server's own.
        """
        if event.error is not None:
            raise error_of_event(event.error)
        meta = event.meta_info
        self.finish = meta.finish_reason
        if self.finish is not None and self.finish.status_code is not None:
            raise error_of_abort(self.finish)  # whatever tokens come with it have no logprobs
        self.prompt_tokens = meta.prompt_tokens or self.prompt_tokens
        self.cached_tokens = meta.cached_tokens or self.cached_tokens
        self.cache_sources = meta.cache_sources or self.cache_sources
        self.retractions = meta.num_retractions or self.retractions
        if meta.weight_version is not None:
            self.version = version_number(meta.weight_version)
        chunk = self._fresh(event)
        self._settle_versions(event)
        return chunk

    def _fresh(self, event: StreamEvent) -> TokenChunk | None:
        """The new tokens are the last of an event's ids, as many as the count has grown by.

        That holds whether events repeat everything, bring what is new, or (an abort in the queue does)
        repeat the last token.
        """
        ids = event.output_ids or []
        count = event.meta_info.completion_tokens
        new = 0 if count is None else count - len(self.token_ids)
        if new <= 0:
            return None
        entries = (event.meta_info.output_token_logprobs or [])[-new:]
        token_ids = ids[-new:]
        if len(token_ids) != new or [entry[1] for entry in entries] != token_ids:
            raise EngineUnavailable(
                f"the engine counts {new} new tokens and sent {len(ids)} ids and {len(entries)} logprobs"
            )
        chunk = TokenChunk(token_ids, [entry[0] for entry in entries], self.version or 0)
        self.token_ids += token_ids
        self.logprobs += chunk.logprobs
        self.weight_versions += [chunk.weight_version] * new
        return chunk

    def _settle_versions(self, event: StreamEvent) -> None:
        """The last event knows which weights sampled which token, however they changed meanwhile."""
        for span in event.meta_info.weight_versions or []:
            start, end = max(0, span.start), min(span.end, len(self.token_ids))
            self.weight_versions[start:end] = [version_number(span.version)] * max(0, end - start)
