"""OpenAI chat messages: the transcript for reading and for supervised fine-tuning.

For people and for tokenisers that start from text. It is not a training sample of the policy: tokenising
it again need not give the ids that were sampled.
"""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

import orjson

from heddle.records import Trajectory
from heddle.types import Message, Role, ToolCall


class OpenAIFunction(TypedDict):
    """``arguments`` is JSON text, as the API has it."""

    name: str
    arguments: str


class OpenAIToolCall(TypedDict):
    """A call in an assistant's message."""

    id: str
    type: Literal["function"]
    function: OpenAIFunction


class OpenAIMessage(TypedDict):
    """One message; keys without a value are absent."""

    role: Role
    content: str
    name: NotRequired[str]
    tool_call_id: NotRequired[str]
    tool_calls: NotRequired[list[OpenAIToolCall]]


def to_openai_messages(trajectory: Trajectory) -> list[OpenAIMessage]:
    """The transcript. An assistant's ``content`` is what was decoded, the text of its calls included."""
    return [_message(message) for message in trajectory.messages]


def _message(message: Message) -> OpenAIMessage:
    converted = OpenAIMessage(role=message.role, content=message.content)
    if message.name is not None:
        converted["name"] = message.name
    if message.tool_call_id is not None:
        converted["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        converted["tool_calls"] = [_tool_call(call) for call in message.tool_calls]
    return converted


def _tool_call(call: ToolCall) -> OpenAIToolCall:
    function = OpenAIFunction(name=call.name, arguments=orjson.dumps(dict(call.arguments)).decode())
    return OpenAIToolCall(id=call.call_id, type="function", function=function)
