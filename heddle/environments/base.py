"""``ToolEnvironment``: what every environment with tools does alike.

A subclass says how an episode opens, what a tool does and what the episode was worth. This base checks
each call against its tool's JSON schema, runs the calls of one turn at once and answers them in their
order, turns malformed calls into observations that help the model, and ends the episode at a final text.

It keeps no state of any episode: what a tool needs comes in its :class:`ToolContext`. Calls that end an
episode by themselves (an ``answer``) reach no backend, so they are in the transcript and not among the
recorded tool calls.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from pydantic import BaseModel, ConfigDict, ValidationError

from heddle.agent.ports import EnvironmentStart, Episode, Reward, StepOutcome, ToolInvoker, Turn
from heddle.errors import InvalidRequest
from heddle.tools.ports import ToolBackend
from heddle.types import Json, Message, StopReason, ToolCall, ToolSpec
from heddle.validation import field_names, first_fault

OBSERVATION_CHARACTERS = 300
"""Longest observation. Small models read about a hundred tokens per second on a CPU."""

FAILURE_TAIL_CHARACTERS = 120
"""How much of a shortened observation is its end: there a traceback says what went wrong."""


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """What a tool says to the model, and whether the episode ends with it."""

    text: str
    stop: StopReason | None = None


@dataclass(frozen=True, slots=True)
class ToolContext:
    """All that a tool may know of its episode. The calling turn is the last of ``messages``."""

    task: Mapping[str, Json]
    messages: Sequence[Message]
    tools: ToolInvoker


class TaskModel(BaseModel):
    """Base of the typed tasks: frozen, and a misspelt field is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


TaskT = TypeVar("TaskT", bound=TaskModel)


def parse_task(model: type[TaskT], task: Mapping[str, Json]) -> TaskT:
    """The typed task. Raises ``InvalidRequest`` with the path of the first wrong field in the task."""
    try:
        return model.model_validate(dict(task))
    except ValidationError as exc:
        fault = first_fault(exc, field_names(model))
        path = _dotted(fault.location)
        raise InvalidRequest(f"{path or 'task'}: {fault.message}", path=path, code="invalid_task") from exc


def shorten(text: str, limit: int = OBSERVATION_CHARACTERS) -> str:
    """``text`` within ``limit`` characters, by leaving out its middle."""
    text = text.strip()
    if len(text) <= limit:
        return text
    mark = " ... "
    tail = min(FAILURE_TAIL_CHARACTERS, limit // 2)
    return text[: limit - tail - len(mark)] + mark + text[-tail:]


class ToolEnvironment(ABC):
    """An environment whose model works through tools. One instance serves many trajectories at once."""

    def __init__(self, name: str, tools: Sequence[ToolSpec]) -> None:
        """``tools`` are the same in every episode. Raises ``jsonschema.SchemaError`` on a wrong schema."""
        self._name = name
        self._tools = tuple(tools)
        for tool in self._tools:
            Draft202012Validator.check_schema(dict(tool.parameters))
        self._validators = {tool.name: Draft202012Validator(dict(tool.parameters)) for tool in self._tools}

    @property
    def name(self) -> str:
        return self._name

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The tools that the model may call."""
        return self._tools

    def backends(self) -> Sequence[ToolBackend]:
        """Backends of this environment's own, registered with the Tool Manager at start."""
        return ()

    @abstractmethod
    def opening(self, task: Mapping[str, Json]) -> tuple[Message, ...]:
        """The first messages. Raises ``InvalidRequest`` with a path relative to the task."""

    @abstractmethod
    async def run_tool(self, call: ToolCall, context: ToolContext) -> ToolAnswer:
        """Run one call, whose arguments match its schema. Raises ``ToolBackendError``."""

    @abstractmethod
    async def reward(self, episode: Episode, tools: ToolInvoker) -> Reward | None:
        """Judge a finished episode."""

    def reset(self, task: Mapping[str, Json]) -> EnvironmentStart:
        """Open an episode. Raises ``InvalidRequest`` with a path relative to the task."""
        return EnvironmentStart(messages=self.opening(task), tools=self._tools)

    async def step(
        self, task: Mapping[str, Json], messages: Sequence[Message], turn: Turn, tools: ToolInvoker
    ) -> StepOutcome:
        """Answer every call of the turn; a turn that asks for nothing ends the episode.

        A turn that was cut off at its token limit is not a final answer: the model hears so and goes on.
        """
        if not turn.calls and not turn.errors:
            if turn.truncated:
                return StepOutcome((self._advice("Your message was cut off. Be brief and call a tool."),))
            return StepOutcome(stop_reason=StopReason.COMPLETED)
        answers = await self._answer_all(turn.calls, ToolContext(task, messages, tools))
        observations = tuple(
            Message(role="tool", content=answer.text, name=call.name, tool_call_id=call.call_id)
            for call, answer in zip(turn.calls, answers, strict=True)
        )
        complaints = tuple(self._advice(f"Malformed tool call: {shorten(error)}") for error in turn.errors)
        stop = next((answer.stop for answer in answers if answer.stop is not None), None)
        return StepOutcome(observations + complaints, stop)

    def complaint_about(self, call: ToolCall) -> str | None:
        """What is wrong with a call (unknown tool, arguments against the schema), or ``None``."""
        validator = self._validators.get(call.name)
        if validator is None:
            return f"There is no tool {shorten(call.name, 40)!r}. Tools: {', '.join(self._validators)}."
        error = best_match(validator.iter_errors(dict(call.arguments)))
        if error is None:
            return None
        where = _dotted(error.absolute_path) or "arguments"
        return f"Wrong arguments for {call.name}: {where}: {shorten(error.message, 160)}."

    def submitted(self, episode: Episode, tool: str) -> Mapping[str, Json] | None:
        """The arguments of the call of ``tool`` that ended the episode, if one did."""
        if episode.stop_reason is not StopReason.TOOL_STOPPED:
            return None
        for message in reversed(episode.messages):
            if message.role == "assistant":
                valid = (c for c in message.tool_calls if c.name == tool and self.complaint_about(c) is None)
                call = next(valid, None)
                return None if call is None else call.arguments
        return None

    @staticmethod
    def final_text(episode: Episode) -> str | None:
        """The text with which the model ended the episode, if it ended with one."""
        if episode.stop_reason is not StopReason.COMPLETED:
            return None
        last = next((m for m in reversed(episode.messages) if m.role == "assistant"), None)
        return None if last is None else last.content

    def _advice(self, text: str) -> Message:
        return Message(role="user", content=f"{text.rstrip('.')}. Tools: {', '.join(self._validators)}.")

    async def _answer_all(self, calls: Sequence[ToolCall], context: ToolContext) -> list[ToolAnswer]:
        """Run the calls at once; answers come in the order of the calls, the first failure goes out."""
        if len(calls) == 1:
            return [await self._answer(calls[0], context)]
        try:
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(self._answer(call, context)) for call in calls]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed
        return [task.result() for task in running]

    async def _answer(self, call: ToolCall, context: ToolContext) -> ToolAnswer:
        complaint = self.complaint_about(call)
        if complaint is not None:
            return ToolAnswer(shorten(context.tools.reject(call, complaint).output))
        answer = await self.run_tool(call, context)
        return ToolAnswer(shorten(answer.text), answer.stop)


def _dotted(location: Sequence[str | int]) -> str:
    """``("tests", 0, "args")`` as ``tests[0].args``."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
