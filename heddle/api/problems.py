"""Every way in which a request can fail, as it goes over the wire.

    {"error": {"code", "message", "path", "details"?, "error_id"?}}

``path`` names the field (``prompts[3].task``, ``query.limit``, ``header.Content-Type``) or is null where
no field is to blame. ``details`` lists all wrong fields where there are several. An unexpected failure
gets an opaque ``error_id``, under which the traceback is in the log and nowhere else.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

import structlog
from aiohttp import web
from pydantic import BaseModel

from heddle.api.fields import FieldError
from heddle.errors import (
    Conflict,
    EngineError,
    HeddleError,
    InvalidRequest,
    NotFound,
    StoreError,
    UnsupportedByEngine,
)

_log = structlog.get_logger(__name__)


class ErrorItem(BaseModel):
    """One wrong field."""

    code: str
    message: str
    path: str


class ErrorDetail(BaseModel):
    """Why the request failed."""

    code: str
    message: str
    path: str | None = None
    details: list[ErrorItem] | None = None
    error_id: str | None = None


class ErrorBody(BaseModel):
    """The body of every answer with a status of 400 or above."""

    error: ErrorDetail


class Problem(HeddleError):
    """A request that fails with this status; raised inside the REST surface only."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        path: str | None = None,
        details: Sequence[FieldError] = (),
        headers: Mapping[str, str] | None = None,
        error_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.path = path
        self.details = details
        self.headers = dict(headers or {})
        self.error_id = error_id

    def response(self) -> web.Response:
        """The answer that says so."""
        detail = ErrorDetail(
            code=self.code,
            message=self.message,
            path=self.path,
            details=[ErrorItem(code=e.code, message=e.message, path=e.path) for e in self.details] or None,
            error_id=self.error_id,
        )
        optional = {name for name in ("details", "error_id") if detail.model_dump()[name] is None}
        body = ErrorBody(error=detail).model_dump_json(exclude={"error": optional})
        return web.Response(
            status=self.status, text=body, content_type="application/json", headers=self.headers
        )


def invalid_fields(errors: Sequence[FieldError]) -> Problem:
    """One problem for all wrong fields; the first one speaks for them."""
    first = errors[0]
    return Problem(400, first.code, first.message, path=first.path, details=errors)


def problem_of(exc: Exception, *, request: web.Request) -> Problem:
    """Translate whatever a handler raised. Unknown exceptions are logged here, with their traceback."""
    match exc:
        case Problem():
            return exc
        case InvalidRequest():
            return Problem(400, exc.code, exc.message, path=exc.path)
        case NotFound():
            return Problem(404, "not_found", str(exc))
        case UnsupportedByEngine():
            return Problem(409, "unsupported_by_engine", str(exc))
        case Conflict():
            return Problem(409, "conflict", str(exc))
        case EngineError():
            return Problem(502, "engine_failed", str(exc))
        case web.HTTPMethodNotAllowed():
            allowed = ", ".join(sorted(exc.allowed_methods))
            message = f"{request.method} is not allowed here; allowed: {allowed}"
            return Problem(405, "method_not_allowed", message, headers={"Allow": allowed})
        case web.HTTPNotFound():
            return Problem(404, "unknown_route", "there is no such route")
        case web.HTTPException() if exc.status < 500:
            return Problem(exc.status, "bad_request", exc.reason)
        case StoreError():
            return _logged(exc, request, Problem(503, "store_unavailable", "the store cannot be used now"))
        case _:
            return _logged(exc, request, Problem(500, "internal_error", "something unexpected went wrong"))


def _logged(exc: Exception, request: web.Request, problem: Problem) -> Problem:
    problem.error_id = uuid.uuid4().hex
    _log.error(
        "http.failed",
        error_id=problem.error_id,
        method=request.method,
        route=route_of(request),
        status=problem.status,
        exc_info=exc,
    )
    return problem


def route_of(request: web.Request) -> str:
    """The route's template, for logs and metrics; never what the caller wrote."""
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else "unknown"
