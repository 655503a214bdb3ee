"""A user's own environment: turn a length from one unit into another, with a table to look factors up.

How to run it: see ``docs/environments.md``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from heddle.agent.ports import Episode, Reward, ToolInvoker
from heddle.environments.base import TaskModel, ToolAnswer, ToolContext, ToolEnvironment, parse_task
from heddle.environments.numbers import same_number
from heddle.tools.inprocess import InProcessBackend, ToolInputError
from heddle.tools.ports import ToolBackend
from heddle.types import Json, Message, StopReason, ToolCall, ToolSpec

Unit = Literal["metre", "mile", "yard", "foot", "inch"]
METRES: dict[str, float] = {"metre": 1.0, "mile": 1609.344, "yard": 0.9144, "foot": 0.3048, "inch": 0.0254}


class UnitTask(TaskModel):
    """``{"amount": 3, "unit": "mile", "target": "yard"}``"""

    amount: float
    unit: Unit
    target: Unit


def look_up(arguments: Mapping[str, Json]) -> str:
    """The backend: trusted code that answers one call."""
    unit = str(arguments["unit"])
    if unit not in METRES:
        raise ToolInputError(f"No such unit. There are: {', '.join(METRES)}.")
    return f"1 {unit} = {METRES[unit]} metre"


class UnitEnvironment(ToolEnvironment):
    """Two tools: ``factor`` looks a unit up, ``answer`` ends the episode."""

    def __init__(self) -> None:
        unit: dict[str, Json] = {"unit": {"type": "string", "maxLength": 10}}
        value: dict[str, Json] = {"value": {"type": "number"}}
        super().__init__(
            "units",
            (
                ToolSpec("factor", "Look a unit up.", _arguments(unit)),
                ToolSpec("answer", "Give the result.", _arguments(value)),
            ),
        )

    def backends(self) -> Sequence[ToolBackend]:
        return (InProcessBackend("units.factor", look_up),)

    def opening(self, task: Mapping[str, Json]) -> tuple[Message, ...]:
        asked = parse_task(UnitTask, task)
        return (Message("user", f"How many {asked.target} are {asked.amount} {asked.unit}?"),)

    async def run_tool(self, call: ToolCall, context: ToolContext) -> ToolAnswer:
        if call.name == "answer":
            return ToolAnswer("Answer taken.", StopReason.TOOL_STOPPED)
        result = await context.tools.invoke(call, backend="units.factor")
        return ToolAnswer(result.output)

    async def reward(self, episode: Episode, tools: ToolInvoker) -> Reward:
        asked = parse_task(UnitTask, episode.task)
        expected = asked.amount * METRES[asked.unit] / METRES[asked.target]
        submitted = self.submitted(episode, "answer")
        value = None if submitted is None else submitted["value"]
        right = isinstance(value, int | float) and same_number(value, expected, tolerance=0.01)
        return Reward(float(right), {"expected": expected})


def _arguments(properties: dict[str, Json]) -> dict[str, Json]:
    return {"type": "object", "properties": properties, "required": list(properties)}
