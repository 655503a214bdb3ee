"""The digest of a context: whole prompt, newest history, long pieces cut in the middle."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from heddle.text.digest import HISTORY_CHARS, PROMPT_CHARS, digest, shorten
from heddle.types import Message


def test_who_said_what() -> None:
    """In the order in which it was said."""
    messages = [
        Message("system", "Be brief."),
        Message("user", "Add 2 and 2."),
        Message("assistant", "I call it."),
        Message("tool", "4", name="add"),
    ]
    assert digest(messages) == "User: Be brief.\nAdd 2 and 2.\nAssistant: I call it.\nTool: 4"


def test_the_newest_history_is_kept() -> None:
    """However long the history is, and the prompt with it."""
    turns = [Message("assistant", f"turn {index} " + "x" * 300) for index in range(100)]
    text = digest([Message("user", "the task"), *turns])
    assert text.startswith("User: the task\nAssistant: ")
    assert "turn 99 " in text
    assert "turn 0 " not in text


def test_a_long_piece_keeps_both_ends() -> None:
    """And says how much is gone."""
    assert shorten("a" * 50 + "b" * 50, 20) == "a" * 10 + " [80 characters cut] " + "b" * 10
    assert shorten("short", 20) == "short"


@given(
    st.lists(st.tuples(st.sampled_from(["user", "assistant", "tool"]), st.text(max_size=4000)), max_size=12)
)
def test_it_is_never_long(pieces: list[tuple[str, str]]) -> None:
    """So that a model can read it and a line can carry it."""
    messages = [Message("assistant" if role == "assistant" else "tool", text) for role, text in pieces]
    opening = [Message("user", text) for role, text in pieces if role == "user"]
    assert len(digest([*opening, *messages])) <= PROMPT_CHARS + HISTORY_CHARS + 100
