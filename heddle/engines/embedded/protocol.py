"""The wire of llama.cpp's server: what is sent, what comes back, and what its failures mean.

Pure apart from reading an iterator of bytes; everything that arrives is validated here.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Literal

import httpx
from pydantic import BaseModel, ValidationError

from heddle.agent.ports import GenerationRequest
from heddle.engines.embedded.grammar import compact_grammar
from heddle.errors import EngineError, EngineRejected, EngineUnavailable
from heddle.types import FinishReason, SamplingParams

MAX_LINE_BYTES = 1 << 18
"""A token's event is under 1 KB; a longer line than this is not from the server that we know."""

_ECHOED = ("temperature", "top_p", "top_k", "min_p")

_FINAL_FIELDS = [
    "stop",
    "stop_type",
    "id_slot",
    "tokens_predicted",
    "timings",
    *(f"generation_settings/{name}" for name in _ECHOED),
]
"""Without this choice the last event repeats the prompt and every setting. A nested field comes under its
own name."""

_REFUSALS = frozenset({400, 413, 422})
"""The request's fault; any other status says that this is not the server we know, or that it is ill."""

_SEED_MASK = 0x7FFF_FFFF
"""Keeps seeds away from 2**32 - 1, by which the server understands "random"."""


class TokenProbability(BaseModel):
    id: int
    logprob: float


class Timings(BaseModel):
    cache_n: int
    prompt_n: int


class ServerError(BaseModel):
    code: int
    message: str


class PromptProgress(BaseModel):
    cache: int
    """Tokens of the prompt that were cached."""


class StreamEvent(BaseModel):
    """One event of ``POST /completion``: prefill progress, one token, the end, or an error."""

    tokens: list[int] = []
    completion_probabilities: list[TokenProbability] = []
    tokens_predicted: int = 0
    """Sampled so far, those that were withheld included."""
    prompt_progress: PromptProgress | None = None
    """Present while the prompt is computed; ``tokens`` then holds a meaningless 0."""
    stop: bool = False
    stop_type: Literal["none", "eos", "limit", "word"] = "none"
    timings: Timings | None = None
    id_slot: int | None = None
    temperature: float | None = None
    """These four: how the engine says that it sampled, in the last event."""
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    error: ServerError | None = None


class _ErrorBody(BaseModel):
    error: ServerError


class SlotParams(BaseModel):
    n_discard: int


class SlotSaved(BaseModel):
    """The answer to ``POST /slots/{id}?action=save``."""

    n_saved: int
    n_written: int
    """Bytes."""


class SlotRestored(BaseModel):
    """The answer to ``POST /slots/{id}?action=restore``."""

    n_restored: int


class Slot(BaseModel):
    """One entry of ``GET /slots``; an idle slot shows its last request."""

    n_ctx: int
    is_processing: bool
    n_prompt_tokens: int = 0
    params: SlotParams | None = None


def completion_body(request: GenerationRequest, *, tag: int) -> dict[str, Any]:
    """The body of ``POST /completion``.

    ``tag`` travels in ``n_discard``, which means nothing while the context does not shift, and is the
    one field by which ``/slots`` lets a request be recognised.
    """
    body: dict[str, Any] = {
        "prompt": list(request.prompt_ids),
        "n_predict": request.max_new_tokens,
        "n_discard": tag,
        "stream": True,
        "return_tokens": True,
        "return_progress": True,  # its writes reveal a closed connection during prefill
        "n_probs": 1,
        "cache_prompt": True,
        "response_fields": _FINAL_FIELDS,
        **_sampling(request.sampling),
    }
    if request.ignore_end:
        body["ignore_eos"] = True
    if request.json_schema is not None:
        grammar = compact_grammar(request.json_schema)
        if grammar is not None:
            body["grammar"] = grammar
        else:
            body["json_schema"] = dict(request.json_schema)
    return body


def _sampling(sampling: SamplingParams) -> dict[str, Any]:
    """Exactly the samplers that were asked for; the server's default chain has nine."""
    samplers = ["temperature"]
    if sampling.top_k > 0:
        samplers.append("top_k")
    if sampling.top_p < 1.0:
        samplers.append("top_p")
    if sampling.min_p > 0.0:
        samplers.append("min_p")
    fields: dict[str, Any] = {
        "samplers": samplers,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
    }
    if sampling.seed is not None:
        fields["seed"] = sampling.seed & _SEED_MASK
    return fields


async def read_events(chunks: AsyncIterator[bytes]) -> AsyncGenerator[StreamEvent, None]:
    """Parse server-sent events; comments and blank lines are skipped.

    Raises ``EngineUnavailable`` on anything that is not such a stream.
    """
    pending = b""
    async for chunk in chunks:
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            kind, _, value = line.strip().partition(b":")
            if kind in (b"data", b"error"):
                yield _parse_event(value)
            elif kind:
                raise EngineUnavailable(f"the engine's stream is not one of events: {line[:80]!r}")
        if len(pending) > MAX_LINE_BYTES:
            raise EngineUnavailable(f"the engine sent a line of more than {MAX_LINE_BYTES} bytes")


def _parse_event(value: bytes) -> StreamEvent:
    try:
        return StreamEvent.model_validate_json(value)
    except ValidationError as exc:
        raise EngineUnavailable(f"the engine sent an event that cannot be read: {value[:80]!r}") from exc


def checked_tokens(event: StreamEvent, already: int) -> tuple[list[int], list[float]]:
    """The ids and logprobs of an event, after ``already`` others.

    Raises ``EngineUnavailable`` where the two disagree, or where the server withheld a token: a
    trajectory with a hole must not reach a trainer.
    """
    probabilities = event.completion_probabilities
    if [entry.id for entry in probabilities] != event.tokens:
        raise EngineUnavailable("the engine's token ids and probabilities do not belong together")
    if event.tokens_predicted != already + len(event.tokens):
        withheld = event.tokens_predicted - already - len(event.tokens)
        raise EngineUnavailable(f"the engine withheld {withheld} of the sampled tokens")
    return event.tokens, [entry.logprob for entry in probabilities]


def finish_reason(event: StreamEvent) -> FinishReason:
    """What the last event says. Raises ``EngineUnavailable`` where that is nothing known."""
    if event.stop_type == "eos":
        return FinishReason.STOP
    if event.stop_type == "limit":
        return FinishReason.LENGTH
    raise EngineUnavailable(f"the engine ended a generation for the reason {event.stop_type!r}")


def echoed_sampling(event: StreamEvent) -> SamplingParams | None:
    """The parameters by which the engine says it sampled; ``None`` where it does not tell."""
    if event.temperature is None or event.top_p is None or event.top_k is None or event.min_p is None:
        return None
    return SamplingParams(event.temperature, event.top_p, event.top_k, event.min_p)


def error_of_status(status: int, body: bytes) -> EngineError:
    """The error that an HTTP status means; the server's own words are kept."""
    try:
        message = _ErrorBody.model_validate_json(body).error.message
    except ValidationError:
        message = body[:200].decode(errors="replace")
    return _error_of_code(status, f"HTTP {status}: {message}")


def error_of_event(error: ServerError) -> EngineError:
    """The error that an event in the middle of a stream means."""
    if "grammar" in error.message:  # code 500, yet the same schema would fail again
        return EngineRejected(error.message)
    return _error_of_code(error.code, error.message)


def _error_of_code(code: int, message: str) -> EngineError:
    if code in _REFUSALS:
        return EngineRejected(message)
    return EngineUnavailable(message)


def error_of_transport(exc: httpx.HTTPError) -> EngineUnavailable:
    """Connection refused, reset, truncated or not HTTP: nothing says what the engine computed."""
    return EngineUnavailable(f"{type(exc).__name__}: {exc}" if str(exc) else type(exc).__name__)
