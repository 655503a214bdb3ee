"""JSON as a tool call may contain it: finite, shallow, unambiguous, and always storable.

Stricter than the standard library, because what is accepted here is journalled and exported later:
duplicate keys, NaN and infinities, integers beyond 64 bits, lone surrogates and deep nesting are refused
where the model can still be told, not where the record is written.
"""

from __future__ import annotations

import json
import math

from heddle.types import Json

MAX_DEPTH = 32
"""Nested objects and arrays in one call; no sensible tool needs more, and encoders recurse."""

_INT_BITS = 63


class InvalidJson(ValueError):
    """The text is no acceptable JSON; the message is written for the model that produced it."""


def loads(text: str) -> Json:
    """Parse all of ``text``. Raises ``InvalidJson``."""
    start = skip_space(text, 0)
    value, end = scan(text, start)
    if skip_space(text, end) != len(text):
        raise InvalidJson(f"unexpected text after the JSON value, at character {end}")
    return value


def scan(text: str, start: int) -> tuple[Json, int]:
    """Parse one value that begins at ``start``; returns it and where it ends. Raises ``InvalidJson``."""
    try:
        value, end = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as exc:
        raise InvalidJson(f"not valid JSON: {exc.msg} at character {exc.pos - start}") from exc
    except RecursionError as exc:
        raise InvalidJson(f"nested deeper than {MAX_DEPTH} levels") from exc
    _check(value, MAX_DEPTH)
    return value, end


def skip_space(text: str, position: int) -> int:
    """The first position from ``position`` on that holds no JSON whitespace, or the text's length."""
    while position < len(text) and text[position] in " \t\n\r":
        position += 1
    return position


def _check(value: Json, depth_left: int) -> None:
    if isinstance(value, str):
        _check_text(value)
    elif isinstance(value, list):
        _check_depth(depth_left)
        for item in value:
            _check(item, depth_left - 1)
    elif isinstance(value, dict):
        _check_depth(depth_left)
        for key, item in value.items():
            _check_text(key)
            _check(item, depth_left - 1)


def _check_depth(depth_left: int) -> None:
    if depth_left == 0:
        raise InvalidJson(f"nested deeper than {MAX_DEPTH} levels")


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        message = "a string holds half of a surrogate pair; write the character itself"
        raise InvalidJson(message) from exc


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise InvalidJson(f"the key {twice[:80]!r} appears twice in one object")
    return unique


def _integer(digits: str) -> int:
    if len(digits) > 20 or (number := int(digits)).bit_length() > _INT_BITS:
        raise InvalidJson("an integer does not fit 64 bits")
    return number


def _number(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise InvalidJson("a number is too large")
    return number


def _constant(name: str) -> Json:
    raise InvalidJson(f"{name} is not JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=_integer, parse_float=_number, parse_constant=_constant
)
