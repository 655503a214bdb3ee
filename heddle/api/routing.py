"""A route as data: what the router serves and what ``/openapi.json`` says of it come from here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp.typedefs import Handler
from pydantic import BaseModel

ERROR_TEXTS: Mapping[int, str] = {
    400: "The request is wrong; `path` names the field.",
    401: "The bearer token is missing or wrong.",
    403: "The request comes from another site.",
    404: "No such thing.",
    408: "The body did not arrive in time.",
    409: "Contradicts the present state, or the engine cannot do it.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    421: "Not addressed to a loopback host, and no token is configured.",
    500: "Unexpected; `error_id` is the key to the log.",
    502: "An engine failed; nothing was changed.",
    503: "Not ready, or the store cannot be used.",
}

_READING = (400, 408, 413, 415)
_ALWAYS = (403, 421, 500)


@dataclass(frozen=True, slots=True)
class Answer:
    """One kind of success. ``schema`` is a type that pydantic can describe, or None for plain text."""

    text: str
    schema: Any = None
    content_types: tuple[str, ...] = ("application/json",)
    wrapped: str | None = None
    """The key under which a list of ``schema`` is sent."""


@dataclass(frozen=True, slots=True)
class Route:
    """One operation of the surface."""

    method: str
    path: str
    handler: Handler
    summary: str
    answers: Mapping[int, Answer]
    tag: str
    query: type[BaseModel] | None = None
    body: type[BaseModel] | None = None
    errors: tuple[int, ...] = ()
    """Statuses of failure beyond those that reading the request implies."""
    public: bool = False
    """Needs no token."""
    id_parameters: tuple[str, ...] = field(default=())

    @property
    def reads_body(self) -> bool:
        return self.method in ("POST", "PUT")

    @property
    def all_errors(self) -> tuple[int, ...]:
        """Every status of failure that this route can answer with."""
        codes = {*self.errors, *_ALWAYS}
        if self.reads_body:
            codes.update(_READING)
        if self.query is not None or self.id_parameters:
            codes.add(400)
        if not self.public:
            codes.add(401)
        return tuple(sorted(codes))
