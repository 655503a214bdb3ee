"""Parsers of tool calls: what is found, what is refused, and that nothing is ever raised."""

from __future__ import annotations

import json

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heddle.errors import ConfigError
from heddle.text.parsers import MAX_CALLS, TOO_MANY_CALLS, FencedParser, ParsedTurn, make_parser
from heddle.types import Json, ToolCall

CALL = '{"name": "add", "arguments": {"a": 1}}'
ADD = ToolCall("call_4_0", "add", {"a": 1})


def parse(name: str, text: str) -> ParsedTurn:
    return make_parser(name).parse(text, step_index=4)


@pytest.mark.parametrize(
    "text",
    [
        f"<tool_call>{CALL}</tool_call>",
        f"<tool_call>\n{CALL}\n</tool_call>",
        f"<tool_call>\n{CALL}",
        f"<tool_call>\n{CALL}\n",
    ],
)
def test_hermes_reads_one_call(text: str) -> None:
    """With the closing tag or, at the end of the text, without."""
    assert parse("hermes", text) == ParsedTurn("", (ADD,), ())


def test_hermes_reads_several_calls_and_keeps_the_words_around_them() -> None:
    """Ids count the calls of the step."""
    other = '{"name": "stop", "arguments": {}}'
    text = f"First <tool_call>{CALL}</tool_call> then\n<tool_call>{other}</tool_call> done"
    calls = (ADD, ToolCall("call_4_1", "stop", {}))
    assert parse("hermes", text) == ParsedTurn("First  then\n done", calls, ())


def test_hermes_is_not_confused_by_tags_inside_a_string() -> None:
    """The JSON decides where a call ends, not the first closing tag."""
    code = "print('</tool_call><tool_call>')"
    text = "<tool_call>" + json.dumps({"name": "py", "arguments": {"code": code}}) + "</tool_call>"
    assert parse("hermes", text).calls == (ToolCall("call_4_0", "py", {"code": code}),)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("", "not valid JSON"),
        ('{"name": "add", "arguments": {"a": }}', "not valid JSON: Expecting value at character 35"),
        ("[]", "expected a JSON object"),
        ('{"arguments": {}}', '"name" must be'),
        ('{"name": 3, "arguments": {}}', '"name" must be'),
        ('{"name": "add"}', '"arguments" must be'),
        ('{"name": "add", "arguments": [1]}', '"arguments" must be'),
        ('{"name": "add", "arguments": "{}"}', '"arguments" must be'),
        ('{"name": "add", "arguments": {"a": 1, "a": 2}}', "'a' appears twice"),
        ('{"name": "add", "arguments": {"a": NaN}}', "NaN is not JSON"),
        ('{"name": "add", "arguments": {"a": -Infinity}}', "-Infinity is not JSON"),
        ('{"name": "add", "arguments": {"a": 1e999}}', "too large"),
        ('{"name": "add", "arguments": {"a": ' + "9" * 5000 + "}}", "64 bits"),
        ('{"name": "add", "arguments": {"a": "\\ud800"}}', "surrogate"),
        ('{"name": "add", "arguments": {"a": ' + "[" * 40 + "]" * 40 + "}}", "nested deeper"),
        ('{"name": "add", "arguments": {"a": ' + "[" * 200_000, "nested deeper"),
        ('{"name": "add", "arguments": {}} trailing', "expected </tool_call>"),
    ],
)
def test_a_malformed_call_is_a_message_and_the_next_call_still_counts(body: str, reason: str) -> None:
    """The error says which call and what is wrong with it."""
    turn = parse("hermes", f"a<tool_call>{body}</tool_call>b<tool_call>{CALL}</tool_call>c")
    assert turn.calls == (ADD,)
    assert turn.content == "abc"
    (error,) = turn.errors
    assert error.startswith("tool call 1: ")
    assert reason in error


def test_text_without_calls_is_content() -> None:
    """For every parser."""
    for name in ("hermes", "openai", "fenced"):
        assert parse(name, " The answer is {4}. ") == ParsedTurn("The answer is {4}.", (), ())


@pytest.mark.parametrize(
    "text",
    [
        CALL,
        '{"tool_calls": [{"function": {"name": "add", "arguments": "{\\"a\\": 1}"}}]}',
        '{"tool_calls": [{"type": "function", "id": "x", "function": ' + CALL + "}]}",
    ],
)
def test_openai_reads_a_call_in_each_of_its_shapes(text: str) -> None:
    """Arguments as an object, or as JSON in a string."""
    assert parse("openai", text) == ParsedTurn("", (ADD,), ())


def test_openai_keeps_the_content_and_numbers_the_errors() -> None:
    """One bad entry does not spoil the others."""
    entries = '[{"function": {"name": "add", "arguments": "{"}}, {"function": ' + CALL + "}, 7]"
    turn = parse("openai", '{"content": "Adding.", "tool_calls": ' + entries + "}")
    assert (turn.content, turn.calls) == ("Adding.", (ADD,))
    assert [error[:12] for error in turn.errors] == ["tool call 1:", "tool call 3:"]


@pytest.mark.parametrize(
    ("text", "errors"),
    [
        ('{"answer": 4}', 0),
        ('{"answer": ', 0),
        ('{"name": "add", "arguments": {', 1),
        ('{"tool_calls": {}}', 1),
    ],
)
def test_openai_tells_an_answer_from_a_broken_call(text: str, errors: int) -> None:
    """JSON that is no call is an answer; a broken call is an error."""
    turn = parse("openai", text)
    assert (turn.calls, len(turn.errors)) == ((), errors)


def test_fenced_calls_the_tool_with_each_python_block() -> None:
    """Other languages are content; indented marks count."""
    text = "Try:\n```python\nprint(1)\n\nx = '```'\n```\nand\n```text\nno\n```\n ```py\ny\n ```"
    turn = FencedParser(tool="run", argument="source").parse(text, step_index=0)
    assert turn.calls == (
        ToolCall("call_0_0", "run", {"source": "print(1)\n\nx = '```'\n"}),
        ToolCall("call_0_1", "run", {"source": "y\n"}),
    )
    assert turn.content == "Try:\nand\n```text\nno\n```"
    assert turn.errors == ()


def test_fenced_reads_no_more_calls_than_others_and_none_that_is_no_text() -> None:
    """The rest is one error; code that nobody could write down is another."""
    turn = parse("fenced", "```python\nprint(1)\n```\n" * (MAX_CALLS + 5))
    assert (len(turn.calls), turn.errors) == (MAX_CALLS, (TOO_MANY_CALLS,))
    turn = parse("fenced", "```python\n\ud800\n```\n```python\nprint(1)\n```\n")
    assert [call.arguments for call in turn.calls] == [{"code": "print(1)\n"}]
    assert turn.errors == ("tool call 1: the code is not valid Unicode: surrogates not allowed",)


def test_fenced_does_not_run_half_a_program() -> None:
    """A block that was cut off is an error."""
    turn = parse("fenced", "```python\nprint(1)\n```\n```python\nprint(")
    assert len(turn.calls) == 1
    assert turn.errors == ("tool call 2: the code block is not closed with ```",)


def test_an_unknown_parser_is_a_config_error() -> None:
    """The message lists the known ones."""
    with pytest.raises(ConfigError, match="hermes, openai or fenced"):
        make_parser("xml")


unhurried = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
fragments = st.sampled_from(
    [
        "<tool_call>",
        "</tool_call>",
        "```python\n",
        "```\n",
        CALL,
        '{"tool_calls": [',
        "]}",
        '"',
        "{",
        "[",
        "\\",
    ]
)
json_values: st.SearchStrategy[Json] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**62), 2**62)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@unhurried
@given(text=st.lists(fragments | st.text(max_size=8), max_size=20).map("".join))
def test_no_text_raises_and_all_that_is_accepted_can_be_stored(text: str) -> None:
    """Fuzz of all three."""
    for name in ("hermes", "openai", "fenced"):
        turn = parse(name, text)
        assert [call.call_id for call in turn.calls] == [f"call_4_{n}" for n in range(len(turn.calls))]
        for call in turn.calls:
            assert orjson.loads(orjson.dumps(dict(call.arguments))) == call.arguments


@unhurried
@given(arguments=st.dictionaries(st.text(), json_values, max_size=4))
def test_any_well_formed_call_comes_back_unchanged(arguments: dict[str, Json]) -> None:
    """Whatever JSON the arguments hold."""
    text = json.dumps({"name": "t", "arguments": arguments})
    expected = (ToolCall("call_4_0", "t", arguments),)
    assert parse("hermes", f"<tool_call>{text}</tool_call>").calls == expected
    assert parse("openai", text).calls == expected


def test_a_flood_of_calls_is_cut_off() -> None:
    """A megabyte of opening tags is done at once; without the bound it would take minutes."""
    turn = parse("hermes", "<tool_call>[" * 80_000)
    assert len(turn.errors) == MAX_CALLS + 1
    assert turn.errors[-1] == "more than 64 tool calls in one turn; the rest is ignored"
    many = parse("openai", json.dumps({"tool_calls": [json.loads(CALL)] * 65}))
    assert (many.calls, len(many.errors)) == ((), 1)
