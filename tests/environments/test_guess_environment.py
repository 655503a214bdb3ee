"""``guess``: the range that remains follows from the transcript alone."""

from __future__ import annotations

import pytest
from episodes import PlainRunner, Play, ScriptedRunner, tool_result
from hypothesis import given
from hypothesis import strategies as st

from heddle.environments.guess import GuessEnvironment, compare
from heddle.errors import InvalidRequest
from heddle.types import Json, StopReason


def play() -> Play:
    """A game from 0 to 99 about 42."""
    environment = GuessEnvironment()
    return Play(environment, {"low": 0, "high": 99, "secret": 42}, PlainRunner(environment.backends()))


async def test_hints_narrow_the_range() -> None:
    """Each answer names the range that all guesses so far leave."""
    game = play()
    outcomes = [await game.turn(("guess", {"number": number})) for number in (50, 20, 60, 41)]

    expected = [
        "50 is too high. It is from 0 to 49.",
        "20 is too low. It is from 21 to 49.",
        "60 is too high. It is from 21 to 49.",
        "41 is too low. It is from 42 to 49.",
    ]
    assert expected == [outcome.messages[0].content for outcome in outcomes]


async def test_the_right_number_ends_the_game() -> None:
    """Found is worth 1; the guesses are counted."""
    game = play()
    await game.turn(("guess", {"number": 50}))
    outcome = await game.turn(("guess", {"number": 42}))

    assert outcome.stop_reason is StopReason.TOOL_STOPPED
    assert await game.reward(StopReason.TOOL_STOPPED) == (1.0, {"guesses": 2, "best": 7})


async def test_a_game_that_ran_into_a_limit_is_worth_nothing() -> None:
    """Not found, no reward."""
    game = play()
    await game.turn(("guess", {"number": 50}))

    assert (await game.reward(StopReason.MAX_STEPS))[0] == 0.0


async def test_a_number_out_of_bounds_is_rejected_and_narrows_nothing() -> None:
    """A call against the schema is no guess."""
    game = play()
    await game.turn(("guess", {"number": -1}))
    outcome = await game.turn(("guess", {"number": 50}))

    assert game.rejected == 1
    assert outcome.messages[0].content == "50 is too high. It is from 0 to 49."


@given(low=st.integers(0, 50), span=st.integers(0, 500), data=st.data())
async def test_halving_finds_every_number_within_the_best(low: int, span: int, data: st.DataObject) -> None:
    """``best`` bounds a player who halves the range, and the hints let one do so."""
    secret = data.draw(st.integers(low, low + span))
    task: dict[str, Json] = {"low": low, "high": low + span, "secret": secret}
    runner = ScriptedRunner(lambda invocation: tool_result(compare(invocation.payload)))
    game = Play(GuessEnvironment(), task, runner)
    first, last, stop = low, low + span, None
    while stop is None:
        outcome = await game.turn(("guess", {"number": (first + last) // 2}))
        stop = outcome.stop_reason
        if stop is None:
            words = outcome.messages[0].content.rstrip(".").split()
            first, last = int(words[-3]), int(words[-1])

    value, info = await game.reward(stop)
    assert value == 1.0
    assert game.steps <= int(str(info["best"]))


@pytest.mark.parametrize(
    "task",
    [
        {"low": 5, "high": 1, "secret": 3},
        {"low": 0, "high": 9, "secret": 10},
        {"low": -1, "high": 9, "secret": 0},
        {"low": 0, "high": 10_000, "secret": 0},
        {"low": 0, "high": 9},
        {"low": 0, "high": 9, "secret": True},
    ],
)
def test_an_impossible_game_is_refused(task: dict[str, Json]) -> None:
    """The secret must lie in a range that the tool can name."""
    with pytest.raises(InvalidRequest):
        GuessEnvironment().reset(task)
