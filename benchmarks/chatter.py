"""What the recovery benchmark keeps open: a model that calls a tool in every step, and the tool."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from heddle.agent.ports import Episode, GenerationRequest, Reward, ToolInvoker
from heddle.environments.base import ToolAnswer, ToolContext, ToolEnvironment
from heddle.text.byte_tokenizer import TURN_END
from heddle.types import Json, Message, ToolCall, ToolSpec

SAID = "so it is said once more " * 8


class ChatterEnvironment(ToolEnvironment):
    """Every step calls one tool, which says it again; the last one never ends."""

    def __init__(self) -> None:
        text: dict[str, Json] = {"type": "string"}
        parameters: dict[str, Json] = {"type": "object", "properties": {"text": text}, "required": ["text"]}
        super().__init__("chatter", (ToolSpec("say", "Says it again.", parameters),))

    def opening(self, task: Mapping[str, Json]) -> tuple[Message, ...]:
        return (Message("user", f"Task {task['number']}. {SAID * 4}"),)

    async def run_tool(self, call: ToolCall, context: ToolContext) -> ToolAnswer:
        if sum(message.role == "assistant" for message in context.messages) == context.task["steps"]:
            await asyncio.Event().wait()
        return ToolAnswer(str(call.arguments["text"]))

    async def reward(self, episode: Episode, tools: ToolInvoker) -> Reward:
        return Reward(1.0)


def speak(request: GenerationRequest) -> Sequence[int]:
    """Call the tool."""
    call = f'{{"name": "say", "arguments": {{"text": "{SAID}"}}}}'
    return [*f"<tool_call>\n{call}\n</tool_call>".encode(), TURN_END]
