"""Refuses JSON schemas that the server would silently ignore.

llama.cpp's grammar engine answers a schema that it cannot compile by sampling without constraint, and
says so only in its log. A caller that asked for constrained output must hear of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

import jsonschema
import orjson

from heddle.errors import EngineRejected
from heddle.types import Json


def check_schema(schema: Mapping[str, Json]) -> None:
    """Raises ``EngineRejected`` for a schema that is not one, or that prescribes text beyond ASCII.

    Such text may need tokens that a grammar cannot choose; see ``streamable``.
    """
    _check(orjson.dumps(dict(schema)))


@lru_cache(maxsize=256)
def _check(encoded: bytes) -> None:
    schema = orjson.loads(encoded)
    try:
        jsonschema.Draft202012Validator.check_schema(
            schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
        )
    except jsonschema.SchemaError as exc:
        raise EngineRejected(f"json_schema: {exc.message}") from exc
    for text in _literals(schema):
        if not text.isascii():
            raise EngineRejected(f"json_schema: cannot force the text {text!r}, which is not ASCII")


def _literals(schema: Json) -> Iterator[str]:
    """Every string that the schema prescribes: constants, enumerations, names of properties."""
    if isinstance(schema, list):
        for item in schema:
            yield from _literals(item)
    elif isinstance(schema, dict):
        for keyword, value in schema.items():
            if keyword in ("const", "enum"):
                yield from _strings(value)
            elif keyword == "properties" and isinstance(value, dict):
                yield from value
                yield from _literals(list(value.values()))
            else:
                yield from _literals(value)


def _strings(value: Json) -> Iterator[str]:
    """Every string inside a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, dict):
        yield from value
        yield from _strings(list(value.values()))
