"""Schemas for constrained calls, and the check of arguments afterwards."""

from __future__ import annotations

import pytest
from jsonschema import Draft202012Validator

from heddle.errors import ConfigError
from heddle.text.constrain import FORCED_PREFIX, MAX_ITEMS, MAX_STRING, tool_call_schema
from heddle.text.parsers import make_parser
from heddle.types import Json, ToolSpec


def make_tool(name: str = "tool", *, required: tuple[str, ...] = (), **properties: Json) -> ToolSpec:
    parameters: dict[str, Json] = {
        "type": "object",
        "properties": properties,
        "required": list(required),
    }
    return ToolSpec(name, "A tool.", parameters)


def bounded(schema: Json) -> Json:
    """What becomes of one argument's schema."""
    whole = tool_call_schema([make_tool(x=schema)])
    call = whole["anyOf"]
    assert isinstance(call, list)
    assert isinstance(call[0], dict)
    validator = Draft202012Validator(call[0])
    validator.check_schema(call[0])
    properties = call[0]["properties"]
    assert isinstance(properties, dict)
    arguments = properties["arguments"]
    assert isinstance(arguments, dict)
    assert isinstance(arguments["properties"], dict)
    return arguments["properties"]["x"]


def test_a_call_is_one_of_the_tools_name_first() -> None:
    """The whole schema, as an engine gets it."""
    tool = make_tool("answer", required=("value",), value={"type": "number"})
    arguments: dict[str, Json] = {
        "type": "object",
        "properties": {"value": {"type": "number"}},
        "required": ["value"],
        "additionalProperties": False,
    }
    call: dict[str, Json] = {
        "type": "object",
        "properties": {"name": {"const": "answer"}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }
    assert tool_call_schema([tool]) == {"anyOf": [call]}
    assert list(call["properties"]) == ["name", "arguments"]  # type: ignore[arg-type]  # it is an object


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string"}, {"type": "string", "minLength": 0, "maxLength": MAX_STRING}),
        ({"type": "string", "maxLength": 7}, {"type": "string", "minLength": 0, "maxLength": 7}),
        (
            {"type": "string", "minLength": 2, "maxLength": 10_000, "pattern": "a+"},
            {"type": "string", "minLength": 2, "maxLength": 1900},
        ),
        ({"type": "integer", "minimum": 3}, {"type": "integer"}),
        ({"enum": ["a", 1]}, {"enum": ["a", 1]}),
        ({"const": "a", "type": "string"}, {"const": "a"}),
        ({"type": ["boolean", "null"]}, {"anyOf": [{"type": "boolean"}, {"type": "null"}]}),
        ({"oneOf": [{"type": "boolean"}, {"const": 1}]}, {"anyOf": [{"type": "boolean"}, {"const": 1}]}),
        (
            {"type": "array", "items": {"type": "boolean"}, "minItems": 1},
            {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": MAX_ITEMS},
        ),
        (
            {"type": "object"},
            {"type": "object", "properties": {}, "required": [], "additionalProperties": False},
        ),
    ],
)
def test_everything_is_bounded(schema: Json, expected: Json) -> None:
    """The tool's own bounds hold; where it has none, ours do."""
    assert bounded(schema) == expected


def test_an_argument_of_any_type_is_a_bounded_scalar() -> None:
    """Free JSON has no end."""
    assert (
        bounded({})
        == bounded(True)
        == {
            "anyOf": [
                {"type": "string", "maxLength": MAX_STRING},
                {"type": "number"},
                {"type": "boolean"},
                {"type": "null"},
            ]
        }
    )


@pytest.mark.parametrize("keyword", ["$ref", "allOf", "not"])
def test_what_no_grammar_can_bound_is_refused(keyword: str) -> None:
    """With the name of the tool and of the keyword."""
    with pytest.raises(ConfigError, match=f"tool tool: .{keyword[1:]}"):
        bounded({keyword: "#"})


def test_no_tools_is_a_config_error() -> None:
    """There is no call to constrain to."""
    with pytest.raises(ConfigError, match="at least one tool"):
        tool_call_schema([])


def test_the_forced_prefix_and_a_constrained_call_make_a_call_for_hermes() -> None:
    """The two modules agree on the tag."""
    turn = make_parser("hermes").parse(FORCED_PREFIX + '{"name": "t", "arguments": {}}', step_index=0)
    assert [call.name for call in turn.calls] == ["t"]
