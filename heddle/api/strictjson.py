"""JSON as Heddle accepts it: RFC 8259, and nothing that would not survive the way to a record.

Refused with the path of the value: duplicate keys, NaN and infinities (``1e999`` too), integers beyond
64 bits, lone surrogates, nesting deeper than ``MAX_DEPTH``. What comes out can be encoded again by every
encoder that Heddle uses. Runs in a thread for large bodies, so it must not hold the interpreter for
long: the hooks below are Python on purpose, each call of one is a point where other threads may run.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass

from heddle.api.fields import path_of
from heddle.errors import InvalidRequest
from heddle.types import Json

MAX_DEPTH = 64
"""Nesting of arrays and objects. Far above any task, far below the limits of recursive encoders."""

MAX_INTEGER_CHARS = 20
"""Digits and sign of a 64-bit integer."""

_SMALLEST_INTEGER = -(2**63)
_LARGEST_INTEGER = 2**64 - 1


@dataclass(frozen=True, slots=True)
class _Refused:
    """Stands in the parsed tree for a value that is not accepted, until its path is known."""

    message: str
    key: str | None = None


def parse_json(body: bytes) -> Json:
    """Parse a body. Raises ``InvalidRequest`` (code ``bad_json``) with a position or a path."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise _bad(f"not UTF-8 at byte {exc.start}", "body") from exc
    try:
        value: Json = json.loads(text, object_pairs_hook=_object, parse_int=_integer)
    except json.JSONDecodeError as exc:
        where = f"line {exc.lineno} column {exc.colno} (character {exc.pos})"
        raise _bad(f"{exc.msg} at {where}", "body") from exc
    except RecursionError as exc:
        raise _bad(f"nested deeper than {MAX_DEPTH} levels", "body") from exc
    _inspect(value)
    return value


def _object(pairs: list[tuple[str, object]]) -> object:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    [(duplicate, _)] = Counter(key for key, _ in pairs).most_common(1)
    return _Refused("duplicate key", duplicate)


def _integer(digits: str) -> object:
    if len(digits) > MAX_INTEGER_CHARS:
        return _Refused("integer beyond 64 bits")
    value = int(digits)
    if _SMALLEST_INTEGER <= value <= _LARGEST_INTEGER:
        return value
    return _Refused("integer beyond 64 bits")


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a container hangs in the tree; a chain, so that no path is built for the good ones."""

    parent: _Place | None
    step: str | int
    depth: int

    def path(self, *more: str | int) -> str:
        steps: list[str | int] = list(reversed(more))
        place: _Place | None = self
        while place is not None and place.parent is not None:
            steps.append(place.step)
            place = place.parent
        return path_of(steps[::-1])


def _inspect(root: object) -> None:
    """Walk the tree without recursion; raises for the first value that is not accepted."""
    holder = _Place(None, "", 1)
    pending: list[tuple[object, _Place]] = []
    _check(root, holder, (), pending)
    while pending:
        container, place = pending.pop()
        if isinstance(container, dict):
            for key, value in container.items():
                _check_text(key, place, ())
                _check(value, place, (key,), pending)
        elif isinstance(container, list):
            for index, value in enumerate(container):
                _check(value, place, (index,), pending)


def _check(
    value: object, place: _Place, step: tuple[str | int, ...], pending: list[tuple[object, _Place]]
) -> None:
    match value:
        case str():
            _check_text(value, place, step)
        case float():
            if not math.isfinite(value):
                raise _bad("not a finite number", place.path(*step))
        case dict() | list():
            if place.depth >= MAX_DEPTH:
                raise _bad(f"nested deeper than {MAX_DEPTH} levels", place.path(*step))
            child = _Place(place, step[0], place.depth + 1) if step else place
            pending.append((value, child))
        case _Refused():
            more = step if value.key is None else (*step, value.key)
            raise _bad(value.message, place.path(*more))
        case _:
            pass


def _check_text(text: str, place: _Place, step: tuple[str | int, ...]) -> None:
    if text.isascii():
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as exc:
        raise _bad("lone surrogate in a string", place.path(*step)) from exc


def _bad(message: str, path: str) -> InvalidRequest:
    return InvalidRequest(message, path=path, code="bad_json")
