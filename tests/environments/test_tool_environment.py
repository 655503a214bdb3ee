"""What every environment with tools does alike."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from episodes import Play, ScriptedRunner, tool_result
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from heddle.agent.invoker import RecordingInvoker
from heddle.agent.ports import Episode, Reward, ToolInvocation, ToolInvoker, ToolResult, Turn
from heddle.environments.base import (
    OBSERVATION_CHARACTERS,
    TaskModel,
    ToolAnswer,
    ToolContext,
    ToolEnvironment,
    parse_task,
    shorten,
)
from heddle.errors import InvalidRequest, ToolBackendError
from heddle.types import Json, Message, StopReason, ToolCall, ToolSpec, TrajectoryId

ECHO = ToolSpec(
    "echo",
    "Say it again.",
    {
        "type": "object",
        "properties": {"text": {"type": "string", "maxLength": 5}},
        "required": ["text"],
        "additionalProperties": False,
    },
)
END = ToolSpec("end", "End.", {"type": "object", "properties": {}})


class Point(TaskModel):
    """A nested task, for paths."""

    x: int


class EchoTask(TaskModel):
    """What the echo environment is asked."""

    prompt: str
    points: tuple[Point, ...] = Field(default=(), strict=False)


class EchoEnvironment(ToolEnvironment):
    """Echoes through a backend, ends on demand."""

    def __init__(self) -> None:
        super().__init__("echo", (ECHO, END))

    def opening(self, task: Mapping[str, Json]) -> tuple[Message, ...]:
        return (Message("user", parse_task(EchoTask, task).prompt),)

    async def run_tool(self, call: ToolCall, context: ToolContext) -> ToolAnswer:
        if call.name == "end":
            return ToolAnswer("Ended.", StopReason.TOOL_STOPPED)
        result = await context.tools.invoke(call, backend="echo")
        return ToolAnswer(result.output)

    async def reward(self, episode: Episode, tools: ToolInvoker) -> Reward | None:
        return None


def echo(invocation: ToolInvocation) -> ToolResult:
    """The text of the call."""
    return tool_result(str(invocation.payload["text"]))


def play(respond: ScriptedRunner | None = None) -> Play:
    """A fresh episode of the echo environment."""
    return Play(EchoEnvironment(), {"prompt": "Go."}, respond or ScriptedRunner(echo))


async def test_an_answer_is_a_tool_message_of_its_call() -> None:
    """A call is answered by one message that carries its id and its tool's name."""
    outcome = await play().turn(("echo", {"text": "hi"}))

    expected = (Message("tool", "hi", name="echo", tool_call_id="call_0"),)
    assert expected == outcome.messages
    assert outcome.stop_reason is None


async def test_a_turn_without_calls_is_the_final_answer() -> None:
    """Plain text ends the episode as completed."""
    outcome = await play().turn(text="It is 4.")

    assert outcome.stop_reason is StopReason.COMPLETED
    assert outcome.messages == ()


async def test_a_turn_cut_off_at_its_limit_is_no_final_answer() -> None:
    """A truncated turn without a call goes on, with advice."""
    outcome = await play().turn(text="Let me think", truncated=True)

    assert outcome.stop_reason is None
    assert (
        outcome.messages[0].content == "Your message was cut off. Be brief and call a tool. Tools: echo, end."
    )


async def test_a_malformed_call_becomes_advice() -> None:
    """A parse error is told to the model, with the tools that there are."""
    outcome = await play().turn(text="<tool_call>{", errors=["the JSON ends too early"])

    expected = (Message("user", "Malformed tool call: the JSON ends too early. Tools: echo, end."),)
    assert expected == outcome.messages
    assert outcome.stop_reason is None


async def test_malformed_and_good_calls_of_one_turn_are_both_answered() -> None:
    """Answers come first, complaints after them."""
    outcome = await play().turn(("echo", {"text": "hi"}), errors=["broken"])

    assert [message.role for message in outcome.messages] == ["tool", "user"]


@pytest.mark.parametrize(
    ("name", "arguments", "complaint"),
    [
        ("shout", {"text": "hi"}, "There is no tool 'shout'. Tools: echo, end."),
        ("echo", {}, "Wrong arguments for echo: arguments: 'text' is a required property."),
        ("echo", {"text": 3}, "Wrong arguments for echo: text: 3 is not of type 'string'."),
        ("echo", {"text": "too long"}, "Wrong arguments for echo: text: 'too long' is too long."),
    ],
)
async def test_a_call_that_cannot_be_run_is_rejected_with_its_reason(
    name: str, arguments: dict[str, Json], complaint: str
) -> None:
    """An unknown tool or arguments against the schema reach no backend and are recorded as invalid."""
    runner = ScriptedRunner(echo)
    episode = play(runner)

    outcome = await episode.turn((name, arguments))

    assert complaint == outcome.messages[0].content
    assert episode.rejected == 1
    assert runner.invocations == []
    assert [record.outcome for record in episode.episode(StopReason.MAX_STEPS).tool_calls] == ["invalid"]


def test_a_complaint_does_not_repeat_a_huge_argument() -> None:
    """It goes into the model's context."""
    complaint = EchoEnvironment().complaint_about(ToolCall("c", "echo", {"text": "x" * 10_000}))
    assert complaint is not None
    assert len(complaint) < 300


async def test_parallel_calls_run_at_once_and_are_answered_in_their_order() -> None:
    """Every call of a turn is under way before the first one has to end."""
    together = asyncio.Barrier(3)

    class Meeting:
        async def invoke(self, invocation: ToolInvocation) -> ToolResult:
            await together.wait()
            return echo(invocation)

    invoker = RecordingInvoker(Meeting(), TrajectoryId("t"), 0, "0")
    calls = tuple(ToolCall(f"c{text}", "echo", {"text": text}) for text in "abc")
    messages = (Message("assistant", "", tool_calls=calls),)

    async with asyncio.timeout(10):
        outcome = await EchoEnvironment().step(
            {"prompt": ""}, messages, Turn(0, "", "", calls, (), False), invoker
        )

    assert [message.content for message in outcome.messages] == ["a", "b", "c"]


async def test_one_call_that_stops_ends_the_episode_after_all_are_answered() -> None:
    """A stop among parallel calls counts, and no answer is lost."""
    outcome = await play().turn(("echo", {"text": "hi"}), ("end", {}))

    assert outcome.stop_reason is StopReason.TOOL_STOPPED
    assert [message.content for message in outcome.messages] == ["hi", "Ended."]


async def test_a_failing_backend_comes_out_as_itself() -> None:
    """The infrastructure's failure is not hidden in an exception group."""

    def fail(invocation: ToolInvocation) -> ToolResult:
        raise ToolBackendError("no sandbox")

    with pytest.raises(ToolBackendError, match="no sandbox"):
        await play(ScriptedRunner(fail)).turn(("echo", {"text": "a"}), ("echo", {"text": "b"}))


async def test_cancelling_a_step_cancels_its_calls() -> None:
    """No call outlives the step that made it."""
    began, ended = asyncio.Event(), asyncio.Event()

    class Endless:
        async def invoke(self, invocation: ToolInvocation) -> ToolResult:
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            raise AssertionError("an endless call returned")

    invoker = RecordingInvoker(Endless(), TrajectoryId("t"), 0, "0")
    calls = (ToolCall("c", "echo", {"text": "a"}),)
    turn = Turn(0, "", "", calls, (), False)
    step = asyncio.create_task(EchoEnvironment().step({"prompt": ""}, (), turn, invoker))
    async with asyncio.timeout(10):
        await began.wait()
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step

    assert ended.is_set()


async def test_only_the_call_that_ended_the_episode_was_submitted() -> None:
    """``submitted`` gives the arguments of the last turn's valid call, and only after a tool's stop."""
    episode = play()
    await episode.turn(("echo", {"text": "old"}))
    await episode.turn(("echo", {"text": "much too long"}), ("echo", {"text": "new"}))

    environment = episode.environment
    assert environment.submitted(episode.episode(StopReason.TOOL_STOPPED), "echo") == {"text": "new"}
    assert environment.submitted(episode.episode(StopReason.TOOL_STOPPED), "end") is None
    assert environment.submitted(episode.episode(StopReason.MAX_STEPS), "echo") is None


@pytest.mark.parametrize(
    ("task", "path"),
    [
        ({}, "prompt"),
        ({"prompt": 3}, "prompt"),
        ({"prompt": "", "extra": 1}, "extra"),
        ({"prompt": "", "points": [{"x": 1}, {"x": "2"}]}, "points[1].x"),
    ],
)
def test_a_wrong_task_is_refused_with_the_path_of_its_field(task: dict[str, Json], path: str) -> None:
    """The path is relative to the task, dotted, with indices."""
    with pytest.raises(InvalidRequest) as caught:
        EchoEnvironment().reset(task)

    assert path == caught.value.path
    assert caught.value.code == "invalid_task"


@given(st.text(max_size=900))
def test_an_observation_never_exceeds_its_limit(text: str) -> None:
    """What is cut keeps its beginning and its end."""
    short = shorten(text)

    assert len(short) <= OBSERVATION_CHARACTERS
    assert text.strip().startswith(short[:100])
    assert text.strip().endswith(short[-100:])
