"""The one middleware: who may call, what a failure looks like, what is counted.

Without a token the server answers only requests that address it as a loopback host, and in either case
none that a browser sends on behalf of another site: a page that someone visits must not drive a
server on their machine.
"""

from __future__ import annotations

import hmac
import time
from urllib.parse import urlsplit

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from heddle.api.context import ApiContext
from heddle.api.problems import Problem, problem_of, route_of
from heddle.api.replies import ClientGone
from heddle.config import LOOPBACK_HOSTS

_log = structlog.get_logger(__name__)

CLIENT_GONE = 499
"""Counted where the client left before its answer was complete; never sent."""

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""What model output shown in the dashboard may do: nothing."""


def make_guard(context: ApiContext, public: frozenset[str]) -> Middleware:
    """Build the middleware; ``public`` are the route templates that need no token."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        started = time.perf_counter()
        status = CLIENT_GONE
        try:
            with context.connections.handling(request.transport):
                response = await _answer(request, handler)
            status = response.status
            return response
        finally:
            route = route_of(request)
            context.metrics.http_request(route, request.method, status)
            seconds = round(time.perf_counter() - started, 4)
            _log.debug("http.request", method=request.method, route=route, status=status, seconds=seconds)

    async def _answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            _check_origin(request, context)
            if route_of(request) not in public:
                _check_token(request, context)
            return await handler(request)
        except ClientGone:
            return web.Response(status=CLIENT_GONE)  # for the count alone: the connection is closed
        except Exception as exc:  # the boundary: named errors become their 4xx, all others a 500
            return problem_of(exc, request=request).response()

    return guard


async def add_headers(_request: web.Request, response: web.StreamResponse) -> None:
    """Headers of every answer (an ``on_response_prepare`` hook)."""
    response.headers["Server"] = "heddle"
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Content-Security-Policy"] = CONTENT_SECURITY_POLICY
    response.headers.setdefault("Cache-Control", "no-store")


def _check_token(request: web.Request, context: ApiContext) -> None:
    if context.token is None:
        return
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    expected = context.token.get_secret_value().encode()
    same = hmac.compare_digest(given.strip().encode("utf-8", "surrogateescape"), expected)
    if scheme.lower() != "bearer" or not same:
        raise Problem(
            401,
            "unauthorized",
            "a valid bearer token is required",
            path="header.Authorization",
            headers={"WWW-Authenticate": 'Bearer realm="heddle"'},
        )


def _check_origin(request: web.Request, context: ApiContext) -> None:
    host = request.headers.get("Host", "")
    if context.token is None and _hostname(host) not in LOOPBACK_HOSTS:
        message = "without a token, the server answers as a loopback host only"
        raise Problem(421, "misdirected", message, path="header.Host")
    origin = request.headers.get("Origin")
    if origin is not None and _netloc(origin) != host:
        raise Problem(403, "cross_origin", "requests from other sites are refused", path="header.Origin")


def _hostname(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""
