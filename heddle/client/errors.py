"""From the server's answers back to Heddle's errors."""

from __future__ import annotations

from typing import NoReturn

import httpx
import orjson

from heddle.errors import (
    Conflict,
    EngineUnavailable,
    HeddleError,
    InvalidRequest,
    NotFound,
    StoreError,
    UnsupportedByEngine,
)


class ServerFailure(HeddleError):
    """The server cannot be reached, or failed, or answered what no Heddle would.

    ``status`` is the HTTP status, or None where there was no answer; ``error_id`` leads to the server's
    log.
    """

    def __init__(self, message: str, *, status: int | None = None, error_id: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.error_id = error_id


class Unauthorized(ServerFailure):
    """The token is missing or wrong."""


def raise_for(response: httpx.Response) -> NoReturn:
    """Raise what an answer with a status of 400 or above stands for; its body must be read already."""
    error = _error(response)
    code, message = _text(error, "code"), _text(error, "message")
    match code:
        case "not_found":
            raise NotFound(message)
        case "conflict":
            raise Conflict(message)
        case "unsupported_by_engine":
            raise UnsupportedByEngine(message)
        case "engine_failed":
            raise EngineUnavailable(message)
        case "store_unavailable":
            raise StoreError(message)
        case "unauthorized":
            raise Unauthorized(message, status=response.status_code)
    path = _text(error, "path")
    if 400 <= response.status_code < 500 and path:
        raise InvalidRequest(message, path=path, code=code)
    text = f"{response.request.method} {response.request.url.path}: {response.status_code} {message}".rstrip()
    raise ServerFailure(text, status=response.status_code, error_id=_text(error, "error_id") or None)


def _error(response: httpx.Response) -> dict[str, object]:
    """The error of the body; empty where something else than Heddle answered (a proxy, say)."""
    try:
        body = orjson.loads(response.content)
    except orjson.JSONDecodeError:
        return {}
    error = body.get("error") if isinstance(body, dict) else None
    return error if isinstance(error, dict) else {}


def _text(error: dict[str, object], name: str) -> str:
    value = error.get(name)
    return value if isinstance(value, str) else ""
