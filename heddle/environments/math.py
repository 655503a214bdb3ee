"""``math``: word problems with numeric answers, and Python to work them out.

Reward 1.0 where the answer equals the expected number within 1e-6 of it, else 0.0. The answer is the
argument of ``answer``, or the last number of a final text. ``reward_info``: ``answer`` (null where none
was given), ``expected``, ``close`` (within 10 %: a hint for curves, not part of the reward).
"""

from __future__ import annotations

from collections.abc import Mapping

from heddle.agent.ports import Episode, Reward, ToolInvoker
from heddle.environments.base import TaskModel, ToolAnswer, ToolContext, ToolEnvironment, parse_task
from heddle.environments.numbers import finite, last_number, same_number
from heddle.environments.programs import show_last_value
from heddle.types import Json, Message, StopReason, ToolCall, ToolSpec

CLOSE = 0.1
"""Relative error within which an answer counts as close."""

SYSTEM = """\
Work out the number with python, then give it with answer. Example:
{"name": "python", "arguments": {"code": "print(12 * 3 + 4)"}}"""

_PYTHON = ToolSpec(
    "python",
    "Run Python and see what it prints.",
    {
        "type": "object",
        "properties": {"code": {"type": "string", "maxLength": 240}},
        "required": ["code"],
        "additionalProperties": False,
    },
)
_ANSWER = ToolSpec(
    "answer",
    "Give the final number.",
    {
        "type": "object",
        "properties": {"value": {"type": "number"}},
        "required": ["value"],
        "additionalProperties": False,
    },
)


class MathTask(TaskModel):
    """A question and the number that answers it."""

    question: str
    answer: float


class MathEnvironment(ToolEnvironment):
    """Solve a word problem with a Python tool."""

    def __init__(self) -> None:
        super().__init__("math", (_PYTHON, _ANSWER))

    def opening(self, task: Mapping[str, Json]) -> tuple[Message, ...]:
        question = parse_task(MathTask, task).question
        return (Message(role="system", content=SYSTEM), Message(role="user", content=question))

    async def run_tool(self, call: ToolCall, context: ToolContext) -> ToolAnswer:
        if call.name == _ANSWER.name:
            return ToolAnswer("Answer taken.", StopReason.TOOL_STOPPED)
        program = show_last_value(str(call.arguments["code"]))
        result = await context.tools.invoke(call, backend="python", payload={"code": program})
        return ToolAnswer(result.output.strip() or "No output. Use print().")

    async def reward(self, episode: Episode, tools: ToolInvoker) -> Reward:
        expected = parse_task(MathTask, episode.task).answer
        answer = self._answer_of(episode)
        right = answer is not None and same_number(answer, expected)
        close = answer is not None and same_number(answer, expected, CLOSE)
        return Reward(float(right), {"answer": answer, "expected": expected, "close": close})

    def _answer_of(self, episode: Episode) -> float | None:
        submitted = self.submitted(episode, _ANSWER.name)
        if submitted is not None:
            value = submitted["value"]
            return finite(value) if isinstance(value, int | float) else None
        text = self.final_text(episode)
        return None if text is None else last_number(text)
