"""Tool-call parsers read whatever a model wrote: as calls, as errors for the model, or as plain text.

They end in time that grows with the text, whatever its nesting; nothing in a text is ever evaluated.
"""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.text.parsers import MAX_CALLS, ToolCallParser, make_parser

PARSERS = ("hermes", "openai", "fenced")
EXAMPLES, ALL_EXAMPLES = 150, 10_000

PIECES = st.sampled_from(
    ["<tool_call>", "</tool_call>", "<tool_call>\n", '{"name": "f", "arguments": {}}', '{"name":', "{", "}",
     "[", "]", '"', "\\", "\\u", "\\ud800", "null", "1e999", "NaN", "```python\n", "```", "\n```\n",
     '"tool_calls": [', "\ud800", "\0", "{" * 300, "[" * 3000, "__import__('os').system('true')",
     '{"arguments": "{}", "name": "f"}', " ", ","]
)  # fmt: skip
TEXTS = st.text(st.characters(exclude_categories=[]), max_size=80) | st.lists(PIECES, max_size=12).map(
    "".join
)

HOSTILE = [
    "<tool_call>" * 50_000,
    "<tool_call>{" * 20_000,
    '<tool_call>{"name": "f", "arguments": {"x": ' + "[" * 100_000,
    '<tool_call>{"name": "f", "arguments": {"x": "' + "\\" * 200_000,
    "{" * 200_000,
    '{"tool_calls": [' * 50_000,
    '{"tool_calls": [' + '{"name": "f", "arguments": {}},' * 20_000,
    "```python\n" * 50_000,
    "```python\n" + "x\n" * 200_000 + "```",
    "```python\n```\n" * 30_000,
    "```python\nprint('\ud800')\n```\n" * 200,
    "</tool_call>" * 50_000,
]


def check(parser: ToolCallParser, text: str) -> None:
    """A turn of this text is sound: bounded, numbered, and what it carries can be written down."""
    turn = parser.parse(text, step_index=3)
    assert len(turn.calls) + len(turn.errors) <= MAX_CALLS + 1
    assert len({call.call_id for call in turn.calls}) == len(turn.calls)
    assert all(call.name and error for call in turn.calls for error in turn.errors)
    orjson.dumps([dict(call.arguments) for call in turn.calls])


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", PARSERS)
def test_any_text_is_a_turn(name: str, full: bool) -> None:
    """Also text that no encoder can write."""
    parser = make_parser(name)

    @settings(max_examples=ALL_EXAMPLES if full else EXAMPLES, database=None)
    @given(TEXTS)
    def attempt(text: str) -> None:
        check(parser, text)

    attempt()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", PARSERS)
@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:24])
def test_a_hostile_text_ends(name: str, text: str) -> None:
    """Half a megabyte at most; what is quadratic in it would not end within the limit."""
    check(make_parser(name), text)
