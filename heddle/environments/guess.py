"""``guess``: find a hidden number; each answer tells the range that remains.

Small and quick, with a naturally long tail of steps: a model that halves the range needs few, one that
wanders needs many. Reward 1.0 where the number was found. ``reward_info``: ``guesses`` and ``best``, the
number of guesses that halving needs in the worst case.

The remaining range follows from the guesses in the transcript, so nothing has to be remembered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import model_validator

from heddle.agent.ports import Episode, Reward, ToolInvoker
from heddle.environments.base import TaskModel, ToolAnswer, ToolContext, ToolEnvironment, parse_task
from heddle.tools.inprocess import InProcessBackend, ToolInputError
from heddle.tools.ports import ToolBackend
from heddle.types import Json, Message, StopReason, ToolCall, ToolSpec

BACKEND = "guess.compare"

HIGHEST = 9999

_GUESS = ToolSpec(
    "guess",
    "Guess the number.",
    {
        "type": "object",
        "properties": {"number": {"type": "integer", "minimum": 0, "maximum": HIGHEST}},
        "required": ["number"],
        "additionalProperties": False,
    },
)


class GuessTask(TaskModel):
    """A hidden number and the range, ends included, that the model is told."""

    low: int
    high: int
    secret: int

    @model_validator(mode="after")
    def _secret_in_range(self) -> GuessTask:
        if not 0 <= self.low <= self.secret <= self.high <= HIGHEST:
            raise ValueError(f"needs 0 <= low <= secret <= high <= {HIGHEST}")
        return self


class GuessEnvironment(ToolEnvironment):
    """Guess a number from hints."""

    def __init__(self) -> None:
        super().__init__("guess", (_GUESS,))

    def backends(self) -> Sequence[ToolBackend]:
        return (InProcessBackend(BACKEND, compare),)

    def opening(self, task: Mapping[str, Json]) -> tuple[Message, ...]:
        game = parse_task(GuessTask, task)
        text = f"Guess my number. It is from {game.low} to {game.high}."
        return (Message(role="user", content=text),)

    async def run_tool(self, call: ToolCall, context: ToolContext) -> ToolAnswer:
        game = parse_task(GuessTask, context.task)
        low, high = self._remaining(game, context.messages)
        payload = {**call.arguments, "low": low, "high": high, "secret": game.secret}
        result = await context.tools.invoke(call, backend=BACKEND, payload=payload)
        found = call.arguments["number"] == game.secret
        return ToolAnswer(result.output, StopReason.TOOL_STOPPED if found else None)

    async def reward(self, episode: Episode, tools: ToolInvoker) -> Reward:
        game = parse_task(GuessTask, episode.task)
        found = self.submitted(episode, _GUESS.name) is not None
        best = (game.high - game.low + 1).bit_length()
        return Reward(float(found), {"guesses": len(episode.tool_calls), "best": best})

    def _remaining(self, game: GuessTask, messages: Sequence[Message]) -> tuple[int, int]:
        """The range left by the guesses of all turns before the last."""
        low, high = game.low, game.high
        for message in messages[:-1]:
            for call in message.tool_calls:
                number = call.arguments.get("number")
                if self.complaint_about(call) is not None or not isinstance(number, int):
                    continue
                if number < game.secret:
                    low = max(low, number + 1)
                elif number > game.secret:
                    high = min(high, number - 1)
        return low, high


def compare(arguments: Mapping[str, Json]) -> str:
    """The handler of ``guess``: too low, too high or right, and the range that remains."""
    match arguments:
        case {"number": int(number), "secret": int(secret), "low": int(low), "high": int(high)}:
            pass
        case _:
            raise ToolInputError("guess needs a whole number.")
    if number == secret:
        return f"{number} is right."
    if number < secret:
        return f"{number} is too low. It is from {max(low, number + 1)} to {high}."
    return f"{number} is too high. It is from {low} to {min(high, number - 1)}."
