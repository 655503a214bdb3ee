"""``code``: write a small Python function, run its unit tests, mend it until they pass.

Reward 1.0 where all tests passed, else 0.0. Passing ends the episode; a final text that holds a fenced
code block is tested when the reward is asked for. ``reward_info``: ``passed`` and ``tests`` (numbers, of
the last run) and ``fraction``.

The model sees what failed, with the value it got and the one expected; it never sees a solution. Tests
compare JSON values: a tuple counts as the list of its items.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import Field, JsonValue

from heddle.agent.ports import Episode, Reward, ToolInvoker
from heddle.environments.base import (
    OBSERVATION_CHARACTERS,
    TaskModel,
    ToolAnswer,
    ToolContext,
    ToolEnvironment,
    parse_task,
    shorten,
)
from heddle.environments.programs import RunReport, call_and_report, equal, read_report
from heddle.types import Json, Message, StopReason, ToolCall, ToolSpec

SYSTEM = """\
Write the Python function and test it. Mend it until all tests pass. Example:
{"name": "run_tests", "arguments": {"code": "def half(n): return n / 2"}}"""

SHOWN_FAILURES = 3
"""Failing tests shown at once; with more the observation would not fit."""

_RUN_TESTS = ToolSpec(
    "run_tests",
    "Run the unit tests on your code.",
    {
        "type": "object",
        "properties": {"code": {"type": "string", "maxLength": 320}},
        "required": ["code"],
        "additionalProperties": False,
    },
)
_MARKER = re.compile(r"^#[0-9a-f]{16}:", re.MULTILINE)
_FENCED = re.compile(r"```(?:python|py)?\s*\n(.*?)```", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Verdict:
    """How many tests passed, and the words for it."""

    passed: int
    total: int
    text: str

    @property
    def all_passed(self) -> bool:
        return self.passed == self.total


class UnitTest(TaskModel):
    """``entry_point(*args) == expected``."""

    args: list[JsonValue]
    expected: JsonValue


class CodeTask(TaskModel):
    """A function to write, by name, and the tests it has to pass."""

    prompt: str
    entry_point: str = Field(pattern=r"^[A-Za-z_]\w*$")
    tests: list[UnitTest] = Field(min_length=1)


class CodeEnvironment(ToolEnvironment):
    """Write a function until its unit tests pass."""

    def __init__(self) -> None:
        super().__init__("code", (_RUN_TESTS,))

    def opening(self, task: Mapping[str, Json]) -> tuple[Message, ...]:
        prompt = parse_task(CodeTask, task).prompt
        return (Message(role="system", content=SYSTEM), Message(role="user", content=prompt))

    async def run_tool(self, call: ToolCall, context: ToolContext) -> ToolAnswer:
        task = parse_task(CodeTask, context.task)
        verdict = await self._test(call, str(call.arguments["code"]), task, context.tools)
        return ToolAnswer(verdict.text, StopReason.TOOL_STOPPED if verdict.all_passed else None)

    async def reward(self, episode: Episode, tools: ToolInvoker) -> Reward:
        task = parse_task(CodeTask, episode.task)
        blocks = _FENCED.findall(self.final_text(episode) or "")
        if blocks:
            call = ToolCall(call_id="final", name=_RUN_TESTS.name, arguments={"code": blocks[-1]})
            return _reward(await self._test(call, blocks[-1], task, tools))
        solved = episode.stop_reason is StopReason.TOOL_STOPPED
        passed = len(task.tests) if solved else _last_passed(task, episode)
        return _reward(Verdict(passed, len(task.tests), ""))

    async def _test(self, call: ToolCall, code: str, task: CodeTask, tools: ToolInvoker) -> Verdict:
        marker = f"#{secrets.token_hex(8)}:"
        program = call_and_report(marker, task.entry_point, code, [test.args for test in task.tests])
        result = await tools.invoke(call, backend="python", payload={"code": program})
        return judge(task, read_report(result.output, marker, len(task.tests)), result.outcome)


def judge(task: CodeTask, report: RunReport, outcome: str) -> Verdict:
    """Compare what came back with what was expected, and say it in the model's words."""
    total = len(task.tests)
    if report.broken is not None:
        return Verdict(0, total, f"{_score(0, total)} {report.broken}")
    failures = []
    for test, call in zip(task.tests, report.calls, strict=True):
        shown = f"{task.entry_point}({', '.join(map(repr, test.args))})"
        if call is None:
            failures.append(f"{shown}: no result ({_why_missing(outcome)})")
        elif call.failed:
            failures.append(f"{shown}: {call.text}")
        elif not equal(call.value, test.expected):
            failures.append(f"{shown}: got {call.text}, expected {test.expected!r}")
    passed = total - len(failures)
    lines = [shorten(failure, OBSERVATION_CHARACTERS // SHOWN_FAILURES - 10) for failure in failures]
    return Verdict(passed, total, "\n".join([_score(passed, total), *lines[:SHOWN_FAILURES]]))


def _score(passed: int, total: int) -> str:
    return f"Passed {passed} of {total}."


def _why_missing(outcome: str) -> str:
    return "the code ended the process" if outcome in ("ok", "error") else outcome.replace("_", " ")


def _reward(verdict: Verdict) -> Reward:
    info: dict[str, Json] = {"passed": verdict.passed, "tests": verdict.total}
    return Reward(float(verdict.all_passed), info | {"fraction": verdict.passed / verdict.total})


def _last_passed(task: CodeTask, episode: Episode) -> int:
    """Tests passed in the last run, read again from its record; only ever said in ``reward_info``."""
    records = [record for record in episode.tool_calls if record.name == _RUN_TESTS.name]
    markers = _MARKER.findall(records[-1].result) if records else []
    if not markers:
        return 0
    report = read_report(records[-1].result, markers[-1], len(task.tests))
    return judge(task, report, records[-1].outcome).passed
