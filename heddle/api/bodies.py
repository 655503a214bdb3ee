"""Reading a request: its body under a limit and a deadline, its query, its ids.

The limit holds while the body streams in, whatever ``Content-Length`` says or does not say. Large bodies
are parsed and validated in a thread, in pieces small enough for the event loop to breathe.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import TypeVar

from aiohttp import web
from aiohttp.http import HttpProcessingError
from pydantic import BaseModel, ValidationError

from heddle.api.context import ApiContext, ApiTiming
from heddle.api.fields import MAX_FIELD_ERRORS, FieldError, field_errors
from heddle.api.problems import Problem, invalid_fields
from heddle.api.schemas import BatchRequest, PromptRequest
from heddle.api.strictjson import parse_json
from heddle.errors import InvalidRequest
from heddle.types import Json

THREAD_BYTES = 256 * 1024
"""Bodies above this are parsed in a thread: below, the thread costs more than the parsing."""

_PATH_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,191}")
"""As ``schemas.ID_PATTERN``, with room for the suffix that makes a batch's id a trajectory's."""

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")


async def read_model(request: web.Request, context: ApiContext, model: type[M]) -> M:
    """Read and validate a JSON body. Raises ``Problem`` or ``InvalidRequest``, naming the field."""
    body = await _read_json_body(request, context)
    return await _parse(body, context, lambda: validate(model, parse_json(body)))


async def expect_no_body(request: web.Request, context: ApiContext) -> None:
    """For calls without arguments: whoever sends some has misunderstood."""
    body = await _read_limited(request, context)
    if body.strip() not in (b"", b"{}"):
        raise InvalidRequest("this call takes no arguments", path="body", code="unknown_field")


def read_query(request: web.Request, model: type[M]) -> M:
    """Validate the query string; unknown and repeated parameters are errors."""
    values: dict[str, str] = {}
    for name, value in request.query.items():
        if name in values:
            raise InvalidRequest("given more than once", path=f"query.{name[:64]}")
        values[name] = value
    try:
        return model.model_validate(values)
    except ValidationError as exc:
        raise invalid_fields(field_errors(exc, model, prefix=("query",))) from exc


def read_id(request: web.Request, name: str) -> str:
    """An id from the path; letters, digits, dot, dash and underscore only."""
    value = request.match_info[name]
    if _PATH_ID.fullmatch(value) is None:
        raise InvalidRequest(
            "an id has at most 191 letters, digits, '.', '-' and '_', and starts with a letter or digit",
            path=f"path.{name}",
            code="invalid_id",
        )
    return value


def validate(model: type[M], value: Json) -> M:
    """Validate a parsed body. Raises ``Problem`` that lists every wrong field."""
    fields: object = value
    errors: list[FieldError] = []
    if model is BatchRequest and isinstance(value, dict):
        fields, errors = _validate_prompts(value)
    try:
        valid = model.model_validate(fields)
    except ValidationError as exc:
        raise invalid_fields([*errors, *field_errors(exc, model)][:MAX_FIELD_ERRORS]) from exc
    if errors:
        raise invalid_fields(errors[:MAX_FIELD_ERRORS])
    return valid


def _validate_prompts(batch: dict[str, Json]) -> tuple[dict[str, object], list[FieldError]]:
    """Put validated prompts in place of raw ones, one by one.

    A single call over 100,000 prompts would hold the interpreter, and so the event loop, for a second.
    """
    raw = batch.get("prompts")
    if not isinstance(raw, list) or not raw:
        return {**batch}, []
    errors: list[FieldError] = []
    prompts: list[PromptRequest] = []
    for index, prompt in enumerate(raw):
        try:
            prompts.append(PromptRequest.model_validate(prompt))
        except ValidationError as exc:
            errors += field_errors(exc, PromptRequest, prefix=("prompts", index))
            if len(errors) >= MAX_FIELD_ERRORS:
                break
    # Where prompts are wrong, a stand-in lets the rest of the batch be judged all the same.
    return {**batch, "prompts": [PromptRequest(task={})] if errors else prompts}, errors


async def _parse(body: bytes, context: ApiContext, parse: Callable[[], T]) -> T:
    if len(body) > THREAD_BYTES:
        return await asyncio.to_thread(parse)
    await context.turns.next()
    return parse()


async def _read_json_body(request: web.Request, context: ApiContext) -> bytes:
    if request.content_type != "application/json" or (request.charset or "utf-8").lower() != "utf-8":
        message = "the body must be JSON, sent as application/json"
        raise Problem(415, "unsupported_media_type", message, path="header.Content-Type")
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        message = "compressed bodies are not accepted"
        raise Problem(415, "unsupported_media_type", message, path="header.Content-Encoding")
    body = await _read_limited(request, context)
    if not body.strip():
        raise InvalidRequest("the body is empty", path="body", code="bad_json")
    return body


async def _read_limited(request: web.Request, context: ApiContext) -> bytes:
    limit = context.max_body_bytes
    if request.content_length is not None and request.content_length > limit:
        raise _too_large(limit)
    pieces: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(context.timing.body_total_s):
            while piece := await _next_piece(request, context.timing):
                size += len(piece)
                if size > limit:
                    raise _too_large(limit)
                pieces.append(piece)
    except TimeoutError as exc:
        message = "the body did not arrive in time"
        raise Problem(408, "body_timeout", message, path="body", headers={"Connection": "close"}) from exc
    except (web.RequestPayloadError, HttpProcessingError, ConnectionError) as exc:
        raise InvalidRequest("the body is incomplete", path="body", code="bad_body") from exc
    return b"".join(pieces)


async def _next_piece(request: web.Request, timing: ApiTiming) -> bytes:
    async with asyncio.timeout(timing.body_idle_s):
        return await request.content.readany()


def _too_large(limit: int) -> Problem:
    message = f"the body is larger than {limit} bytes"
    return Problem(413, "body_too_large", message, path="body", headers={"Connection": "close"})
