"""Compact grammars: what they say, and that a real engine keeps to them."""

from __future__ import annotations

import pytest

from heddle.engines.embedded.grammar import compact_grammar
from heddle.text.constrain import tool_call_schema
from heddle.types import Json, ToolSpec


def root_of(schema: dict[str, Json]) -> str | None:
    """The first rule only."""
    grammar = compact_grammar(schema)
    return None if grammar is None else grammar.splitlines()[0]


def test_a_tool_call_has_one_layout() -> None:
    """Name and arguments in their order, one blank after each colon and comma, nowhere else."""
    code: dict[str, Json] = {"type": "string", "maxLength": 40}
    tool = ToolSpec("python", "", {"type": "object", "properties": {"code": code}, "required": ["code"]})

    expected = (
        r'root ::= ("{" "\"name\": " "\"python\"" ", " "\"arguments\": " '
        r'"{" "\"code\": " "\"" char{0,40} "\"" "}" "}")'
    )
    assert root_of(tool_call_schema([tool])) == expected


def test_optional_properties_keep_their_order_and_their_commas() -> None:
    """After a required one each optional one brings its own comma; without, the first has none."""
    a: dict[str, Json] = {"type": "integer"}
    schema: dict[str, Json] = {"type": "object", "properties": {"x": a, "y": a}}
    schema["additionalProperties"] = False

    assert root_of({**schema, "required": ["x"]}) == (
        r'root ::= "{" "\"x\": " integer (", " "\"y\": " integer)? "}"'
    )
    assert root_of(schema) == (
        r'root ::= "{" ("\"x\": " integer (", " "\"y\": " integer)? | "\"y\": " integer)? "}"'
    )


def test_arrays_keep_their_bounds() -> None:
    """Fewest and most items, commas between."""
    schema: dict[str, Json] = {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3}

    assert root_of(schema) == 'root ::= "[" (boolean) (", " (boolean)){1,2} "]"'
    assert root_of({**schema, "minItems": 0}) == 'root ::= "[" ((boolean) (", " (boolean)){0,2})? "]"'


def test_text_beyond_ascii_is_escaped() -> None:
    """JSON can say every character in ASCII, and a grammar can always choose those tokens."""
    assert root_of({"const": "grün"}) == r'root ::= "\"gr\\u00fcn\""'


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"type": "string", "pattern": "a+", "maxLength": 3},
        {"type": "object", "properties": {}},
        {"$ref": "#/x"},
        {"type": "array", "items": {"type": "integer"}},
        {},
    ],
)
def test_what_it_does_not_know_is_left_to_the_server(schema: dict[str, Json]) -> None:
    """Unbounded or unknown schemas have no compact grammar, rather than a wrong one."""
    assert compact_grammar(schema) is None
