"""``math``: numbers read and compared, Python run, answers judged."""

from __future__ import annotations

import math

import pytest
from episodes import PlainRunner, Play, ScriptedRunner, tool_result
from hypothesis import given
from hypothesis import strategies as st

from heddle.environments.math import MathEnvironment
from heddle.environments.numbers import finite, last_number, same_number
from heddle.types import Json, StopReason

TASK: dict[str, Json] = {"question": "What is 6 times 7?", "answer": 42}


def play() -> Play:
    """An episode whose Python runs in a plain subprocess."""
    return Play(MathEnvironment(), TASK, PlainRunner())


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("42", 42.0),
        ("The answer is 42.", 42.0),
        ("$1,234.50 in all", 1234.5),
        ("-3", -3.0),
        ("minus -$4", -4.0),
        ("3/4", 0.75),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("5-3", 3.0),
        ("first 7, then 12 apples", 12.0),
        ("25%", 25.0),
        ("1,23", 23.0),
        ("x2", None),
        ("1/0", None),
        ("none at all", None),
        ("", None),
        ("9" * 400, None),
        ("__import__('os')", None),
    ],
)
def test_the_last_number_of_a_text(text: str, number: float | None) -> None:
    """Thousands, currency, fractions and exponents are read; words are not."""
    assert number == last_number(text)


@given(st.floats(allow_nan=False, allow_infinity=False, width=32))
def test_a_number_survives_being_written_and_read(number: float) -> None:
    """Whatever Python writes for a float is read as that float."""
    read = last_number(f"so it is {number!r}")

    assert read is not None
    assert same_number(read, number)


@given(st.text())
def test_reading_never_raises(text: str) -> None:
    """Any text gives a finite number or none."""
    number = last_number(text)

    assert number is None or math.isfinite(number)


@pytest.mark.parametrize(
    ("got", "expected", "same"),
    [(42.00001, 42, True), (42.001, 42, False), (0, 0, True), (1e-9, 0, True), (0.1, 0, False)],
)
def test_numbers_are_compared_relatively(got: float, expected: float, same: bool) -> None:
    """Within a millionth of the expected value; around zero, within a millionth."""
    assert same is same_number(got, expected)


def test_a_number_too_large_for_a_float_is_no_answer() -> None:
    """An integer of four hundred digits neither raises nor counts."""
    assert finite(10**400) is None


@pytest.mark.parametrize(
    ("code", "observation"),
    [
        ("print(6 * 7)", "42"),
        ("x = 6\nx * 7", "42"),
        ("x = 6", "No output. Use print()."),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("print('é', '\\u2028')", "é"),
    ],
)
async def test_python_shows_output_or_the_last_value_or_the_error(code: str, observation: str) -> None:
    """The observation is what the code printed, as a notebook would show it."""
    outcome = await play().turn(("python", {"code": code}))

    assert observation == outcome.messages[0].content
    assert outcome.stop_reason is None


async def test_a_syntax_error_is_an_observation() -> None:
    """Code that does not compile is told so in a line."""
    outcome = await play().turn(("python", {"code": "def f(:"}))

    assert outcome.messages[0].content.startswith("SyntaxError: invalid syntax")


async def test_the_code_goes_to_the_python_backend() -> None:
    """Nothing but the sandbox runs it."""
    runner = ScriptedRunner(lambda invocation: tool_result("42\n"))
    await Play(MathEnvironment(), TASK, runner).turn(("python", {"code": "6*7"}))

    assert [invocation.backend for invocation in runner.invocations] == ["python"]


@pytest.mark.parametrize(("value", "reward"), [(42, 1.0), (42.00001, 1.0), (41, 0.0), (10**400, 0.0)])
async def test_the_submitted_number_is_judged(value: float, reward: float) -> None:
    """``answer`` ends the episode; the number decides."""
    episode = play()
    outcome = await episode.turn(("answer", {"value": value}))

    assert outcome.stop_reason is StopReason.TOOL_STOPPED
    assert reward == (await episode.reward(StopReason.TOOL_STOPPED))[0]


async def test_the_last_number_of_a_final_text_counts() -> None:
    """A model that does not call ``answer`` may simply say it."""
    episode = play()
    await episode.turn(text="6 times 7 is 42")

    value, info = await episode.reward(StopReason.COMPLETED)
    assert value == 1.0
    assert info == {"answer": 42.0, "expected": 42.0, "close": True}


async def test_a_close_answer_is_told_but_not_rewarded() -> None:
    """Partial credit stays in the info."""
    episode = play()
    await episode.turn(("answer", {"value": 40}))

    value, info = await episode.reward(StopReason.TOOL_STOPPED)
    assert value == 0.0
    assert info["close"] is True


async def test_an_episode_that_ran_into_a_limit_has_no_answer() -> None:
    """A number said on the way does not count."""
    episode = play()
    await episode.turn(("python", {"code": "42"}), text="maybe 42")

    value, info = await episode.reward(StopReason.MAX_STEPS)
    assert value == 0.0
    assert info["answer"] is None
