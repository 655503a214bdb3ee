"""JSON schemas as compact grammars: one line of JSON, with no choice of white space.

llama.cpp converts schemas by itself, but lets the model put line breaks and indentation between any two
tokens of JSON; a small model then spends half of its budget, or all of it, on blanks. Here the layout is
fixed (``{"name": "python", "arguments": {"code": "..."}}``), so every sampled token is content.

Covers what tool calls are made of. A schema beyond that is ``None``: the server's own conversion serves.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache

import orjson

from heddle.types import Json

_MAX_REPEAT = 1900
"""llama.cpp refuses to repeat a rule much more often."""

_PRELUDE = r"""
char ::= [^"\\\x7F\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4})
integer ::= "-"? ("0" | [1-9] [0-9]{0,15})
number ::= integer ("." [0-9]{1,15})? ([eE] [-+]? [0-9]{1,3})?
boolean ::= "true" | "false"
null ::= "null"
"""

_SCALARS = frozenset({"integer", "number", "boolean", "null"})


class _Unsupported(Exception):
    """The schema says something that this converter does not know."""


def compact_grammar(schema: Mapping[str, Json]) -> str | None:
    """The grammar (GBNF) of exactly the documents that fit ``schema``, or ``None`` beyond the subset.

    The subset: ``const``, ``enum``, ``anyOf``, closed objects, arrays and strings with bounds, scalars.
    """
    return _compiled(orjson.dumps(dict(schema)))


@lru_cache(maxsize=256)
def _compiled(encoded: bytes) -> str | None:
    try:
        return f"root ::= {_rule(orjson.loads(encoded))}{_PRELUDE}"
    except _Unsupported:
        return None


def _rule(schema: Json) -> str:
    if not isinstance(schema, dict):
        raise _Unsupported
    if set(schema) == {"const"}:
        return _document(schema["const"])
    if set(schema) == {"enum"} and isinstance(choices := schema["enum"], list) and choices:
        return _either([_document(choice) for choice in choices])
    if set(schema) == {"anyOf"} and isinstance(options := schema["anyOf"], list) and options:
        return _either([_rule(option) for option in options])
    match schema.get("type"):
        case "string":
            _allow(schema, {"minLength", "maxLength"})
            return rf'"\"" char{_repeat(schema, "minLength", "maxLength")} "\""'
        case "array":
            return _array(schema)
        case "object":
            return _object(schema)
        case str(kind) if kind in _SCALARS:
            _allow(schema, set())
            return kind
        case _:
            raise _Unsupported


def _array(schema: Mapping[str, Json]) -> str:
    _allow(schema, {"items", "minItems", "maxItems"})
    fewest, most = _bounds(schema, "minItems", "maxItems")
    item = _rule(schema.get("items"))
    if most == 0:
        return _literal("[]")
    rest = f'(", " ({item})){{{max(0, fewest - 1)},{most - 1}}}'
    some = f"({item}) {rest}"
    return f'"[" {some} "]"' if fewest else f'"[" ({some})? "]"'


def _object(schema: Mapping[str, Json]) -> str:
    _allow(schema, {"properties", "required", "additionalProperties"})
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if schema.get("additionalProperties") is not False:
        raise _Unsupported
    if not isinstance(properties, dict) or not isinstance(required, list):
        raise _Unsupported
    if any(name not in properties for name in required):
        raise _Unsupported
    entries = {
        name: f"{_literal(json.dumps(name) + ': ')} {_rule(value)}" for name, value in properties.items()
    }
    always = [entry for name, entry in entries.items() if name in required]
    maybe = [entry for name, entry in entries.items() if name not in required]
    if always:
        inner = ' ", " '.join(always) + "".join(f' (", " {entry})?' for entry in maybe)
    else:
        inner = _optional_entries(maybe)
    return f'"{{" {inner} "}}"'


def _optional_entries(entries: Sequence[str]) -> str:
    """Any of them, in their order, with commas only between."""
    if not entries:
        return '""'
    chains = [
        entry + "".join(f' (", " {later})?' for later in entries[place + 1 :])
        for place, entry in enumerate(entries)
    ]
    return f"{_either(chains)}?"


def _document(value: Json) -> str:
    return _literal(json.dumps(value))


def _literal(text: str) -> str:
    """A terminal of the grammar, whose escapes are those of JSON. ``text`` is ASCII: JSON as dumped."""
    return json.dumps(text)


def _either(rules: Sequence[str]) -> str:
    return f"({' | '.join(rules)})"


def _allow(schema: Mapping[str, Json], keywords: set[str]) -> None:
    if set(schema) - keywords - {"type", "description", "title"}:
        raise _Unsupported


def _repeat(schema: Mapping[str, Json], low: str, high: str) -> str:
    fewest, most = _bounds(schema, low, high)
    return f"{{{fewest},{most}}}"


def _bounds(schema: Mapping[str, Json], low: str, high: str) -> tuple[int, int]:
    fewest, most = schema.get(low, 0), schema.get(high)
    if not isinstance(fewest, int) or not isinstance(most, int) or not 0 <= fewest <= most <= _MAX_REPEAT:
        raise _Unsupported
    return fewest, most
