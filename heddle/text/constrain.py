"""Constrained tool calls: a JSON schema that lets a model write one call, and nothing else.

The schema goes to an engine that turns it into a grammar, so it uses only what such converters
understand, and it bounds everything: strings, arrays, objects. A small model that cannot leave a string
would otherwise spend its whole budget inside it. What a grammar cannot say (patterns, ranges) is left out
here and checked afterwards, by ``ToolEnvironment.complaint_about``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from heddle.errors import ConfigError
from heddle.types import Json, ToolSpec

FORCED_PREFIX = "<tool_call>\n"
"""Put into the model's mouth before a constrained call; the parser ``hermes`` reads what comes of it."""

MAX_STRING = 200
"""Characters of a string argument whose tool sets no bound."""

LONGEST_STRING = 1900
"""Grammar engines refuse to repeat a rule more often than about 2,000 times."""

MAX_ITEMS = 8
"""Entries of an array argument whose tool sets no bound."""

_REFUSED_KEYWORDS = ("$ref", "$dynamicRef", "allOf", "not", "if", "patternProperties")


def tool_call_schema(tools: Sequence[ToolSpec], *, max_string: int = MAX_STRING) -> dict[str, Json]:
    """The schema of ``{"name": ..., "arguments": {...}}`` for exactly one of ``tools``.

    Raises ``ConfigError`` where there is no tool, or one whose parameters no grammar can bound.
    """
    if not tools:
        raise ConfigError("a constrained tool call needs at least one tool")
    calls: list[Json] = [_call_schema(tool, max_string) for tool in tools]
    return {"anyOf": calls}


def _call_schema(tool: ToolSpec, max_string: int) -> dict[str, Json]:
    bounds = _Bounds(tool.name, max_string)
    arguments = bounds.apply({"type": "object", **tool.parameters})
    return _closed_object({"name": {"const": tool.name}, "arguments": arguments}, ["name", "arguments"])


def _closed_object(properties: dict[str, Json], required: list[Json]) -> dict[str, Json]:
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Rewrites a tool's schema into the bounded subset."""

    tool: str
    max_string: int

    def apply(self, schema: Json) -> dict[str, Json]:
        """The nearest schema that a grammar can hold a model to in bounded text."""
        if not isinstance(schema, dict):
            return self._any_scalar()
        if refused := [keyword for keyword in _REFUSED_KEYWORDS if keyword in schema]:
            raise ConfigError(f"tool {self.tool}: {refused[0]} cannot be turned into a constrained call")
        for keyword in ("const", "enum"):
            if keyword in schema:
                return {keyword: schema[keyword]}
        for keyword in ("anyOf", "oneOf"):
            if isinstance(choices := schema.get(keyword), list):
                return {"anyOf": [self.apply(choice) for choice in choices]}
        return self._of_type(schema.get("type"), schema)

    def _of_type(self, kind: Json, schema: Mapping[str, Json]) -> dict[str, Json]:
        match kind:
            case list():
                return {"anyOf": [self._of_type(one, schema) for one in kind]}
            case "string":
                return self._string(schema)
            case "array":
                return self._array(schema)
            case "object":
                return self._object(schema)
            case "integer" | "number" | "boolean" | "null":
                return {"type": kind}
            case _:
                return self._any_scalar()

    def _string(self, schema: Mapping[str, Json]) -> dict[str, Json]:
        longest = min(_count(schema, "maxLength", self.max_string), LONGEST_STRING)
        shortest = min(_count(schema, "minLength", 0), longest)
        return {"type": "string", "minLength": shortest, "maxLength": longest}

    def _array(self, schema: Mapping[str, Json]) -> dict[str, Json]:
        fewest = _count(schema, "minItems", 0)
        most = max(_count(schema, "maxItems", MAX_ITEMS), fewest)
        return {
            "type": "array",
            "items": self.apply(schema.get("items")),
            "minItems": fewest,
            "maxItems": most,
        }

    def _object(self, schema: Mapping[str, Json]) -> dict[str, Json]:
        properties = schema.get("properties")
        required = schema.get("required")
        bounded = properties if isinstance(properties, dict) else {}
        return _closed_object(
            {name: self.apply(value) for name, value in bounded.items()},
            [name for name in required if name in bounded] if isinstance(required, list) else [],
        )

    def _any_scalar(self) -> dict[str, Json]:
        kinds: list[Json] = [{"type": kind} for kind in ("number", "boolean", "null")]
        return {"anyOf": [{"type": "string", "maxLength": self.max_string}, *kinds]}


def _count(schema: Mapping[str, Json], keyword: str, default: int) -> int:
    value = schema.get(keyword)
    return value if isinstance(value, int) and not isinstance(value, bool) else default
