"""The wire of SGLang's server: what is sent, what comes back, and what its failures mean.

Pure; everything that arrives is validated here. Which fields ``meta_info`` has depends on how a request
ended, on the server's flags and on its version, so none is required.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import orjson
from pydantic import BaseModel, ValidationError

from heddle.agent.ports import GenerationRequest
from heddle.errors import EngineError, EngineInterrupted, EngineRejected, EngineUnavailable
from heddle.types import CacheSources, SamplingParams

_REFUSALS = frozenset({400, 413, 422})
"""The request's fault: it would be refused again."""

_NO_ROOM = 503
"""The server's queue is full, a request of a higher priority took the place, or a time limit passed."""

DEFAULT_VERSION = "default"
"""What a server calls its weights unless it was told another name."""


class Finish(BaseModel):
    """Why a request ended. ``status_code`` is there where an abort was the server's own doing."""

    type: Literal["stop", "length", "abort"]
    message: str | None = None
    status_code: int | None = None


class CachedDetails(BaseModel):
    device: int = 0
    host: int = 0
    storage: int = 0


class VersionSpan(BaseModel):
    """Tokens ``start`` to ``end`` (exclusive) were sampled by these weights."""

    version: str
    start: int
    end: int


class MetaInfo(BaseModel):
    finish_reason: Finish | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    cached_tokens_details: CachedDetails | None = None
    weight_version: str | None = None
    weight_versions: list[VersionSpan] | None = None
    num_retractions: int | None = None
    output_token_logprobs: list[tuple[float, int, str | None]] | None = None

    @property
    def cache_sources(self) -> CacheSources | None:
        """Where cached tokens came from, if the server tells."""
        details = self.cached_tokens_details
        return None if details is None else CacheSources(details.device, details.host, details.storage)


class StreamError(BaseModel):
    message: str = ""
    code: int | None = None


class StreamEvent(BaseModel):
    """One event of ``POST /generate``: tokens, the end, or an error."""

    output_ids: list[int] | None = None
    meta_info: MetaInfo = MetaInfo()
    error: StreamError | None = None


class _ErrorBody(BaseModel):
    error: StreamError | str


class Outcome(BaseModel):
    """The answer to a control request that failed."""

    message: str


def generate_body(
    request: GenerationRequest,
    *,
    rid: str,
    extra_key: str,
    end_ids: Sequence[int] = (),
    session_id: str | None = None,
    priority: int | None = None,
) -> dict[str, Any]:
    """The body of ``POST /generate``.

    ``rid`` must not begin like that of any other request: the server aborts by prefix. ``extra_key`` parts
    the prefix cache, here and in shared stores; ``session_id`` and ``priority`` are left out where ``None``.
    """
    body: dict[str, Any] = {
        "rid": rid,
        "input_ids": list(request.prompt_ids),
        "sampling_params": _sampling(request, end_ids),
        "return_logprob": True,
        "logprob_start_len": -1,  # logprobs of the prompt would forbid the use of its cached prefix
        "extra_key": extra_key,
        "stream": True,
    }
    if session_id is not None:
        body["session_id"] = session_id
    if priority is not None:
        body["priority"] = priority
    return body


def _sampling(request: GenerationRequest, end_ids: Sequence[int]) -> dict[str, Any]:
    """Every parameter that has a default elsewhere is sent: servers can be given others."""
    sampling: SamplingParams = request.sampling
    fields: dict[str, Any] = {
        "max_new_tokens": request.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k if sampling.top_k > 0 else -1,
        "min_p": sampling.min_p,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "no_stop_trim": True,
    }
    if sampling.seed is not None:
        fields["sampling_seed"] = sampling.seed
    if request.ignore_end:
        fields["ignore_eos"] = True
        fields["logit_bias"] = {str(token_id): _NEVER for token_id in end_ids}
    elif end_ids:
        fields["stop_token_ids"] = list(end_ids)
    if request.json_schema is not None:
        fields["json_schema"] = orjson.dumps(request.json_schema).decode()
    return fields


_NEVER = -1e4
"""Added to a logit: no sampling can choose it then."""


def version_number(name: str | None) -> int:
    """The weight version that a server names. Raises ``EngineUnavailable`` where it is no number."""
    if name is None or name == DEFAULT_VERSION:
        return 0
    try:
        return int(name)
    except ValueError as exc:
        raise EngineUnavailable(
            f"the engine calls its weights {name!r}; versions are whole numbers here"
        ) from exc


def cache_key(version: int) -> str:
    """The part of the prefix cache that belongs to these weights, in every server and store."""
    return f"wv:{version}"


def parse_event(value: bytes) -> StreamEvent:
    """One event. Raises ``EngineUnavailable`` on anything else."""
    try:
        return StreamEvent.model_validate_json(value)
    except ValidationError as exc:
        raise EngineUnavailable(f"the engine sent an event that cannot be read: {value[:80]!r}") from exc


def error_of_status(status: int, body: bytes) -> EngineError:
    """The error that an HTTP status means; the server's own words are kept."""
    return _error_of_code(status, f"HTTP {status}: {_message(body)}")


def error_of_event(error: StreamError) -> EngineError:
    """The error that an event instead of tokens means."""
    return _error_of_code(error.code or 400, error.message)


def error_of_abort(finish: Finish) -> EngineError:
    """What it means that the server ended a request which nobody here had aborted."""
    message = finish.message or "the engine aborted the generation"
    if finish.status_code is None:
        return EngineInterrupted(message)
    return _error_of_code(finish.status_code, message)


def _error_of_code(code: int, message: str) -> EngineError:
    if code in _REFUSALS:
        return EngineRejected(message)
    if code == _NO_ROOM:
        return EngineInterrupted(message)
    return EngineUnavailable(message)


def _message(body: bytes) -> str:
    """What an error says, in whichever of its forms."""
    try:
        error = _ErrorBody.model_validate_json(body).error
    except ValidationError:
        pass
    else:
        return error if isinstance(error, str) else error.message
    try:
        message = Outcome.model_validate_json(body).message
    except ValidationError:
        message = ""
    return message or body[:200].decode(errors="replace")
