"""Chat templates: from messages and tool schemas to text. Pure: the same arguments, the same text.

Templates come with models, so they run in a sandbox that cannot change what it is given. Heddle's own,
``CHATML_TOOLS``, serves ChatML models whose template knows nothing of tools; it spends few tokens,
because on a small machine a prompt is paid for in seconds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import NoReturn, TypeAlias

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from heddle.errors import ConfigError
from heddle.types import Json, Message, ToolCall, ToolSpec

CHATML_TOOLS = files("heddle.text").joinpath("templates/chatml_tools.jinja").read_text(encoding="utf-8")

Guard: TypeAlias = Callable[[str], str]
"""Applied to every string that is content, as opposed to the template's own text."""


class ChatTemplate:
    """One compiled template. Raises ``ConfigError`` where it does not compile."""

    def __init__(
        self,
        source: str,
        *,
        bos_token: str = "",
        eos_token: str = "",
        strftime_now: Callable[[str], str] | None = None,
    ) -> None:
        environment = _environment()
        if strftime_now is not None:
            environment.globals["strftime_now"] = strftime_now
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as exc:
            raise ConfigError(f"bad chat template: {exc}") from exc
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec] = (),
        *,
        open_turn: bool,
        guard: Guard = str,
    ) -> str:
        """The text of a conversation; ``open_turn`` adds the opening of the assistant's next turn.

        The content of an assistant's message stands as it was decoded, its tool calls included; so
        ``tool_calls`` are rendered only for a message without content. Raises ``ConfigError``.
        """
        try:
            return self._template.render(
                messages=[_message(message, guard) for message in messages],
                tools=[_tool(tool, guard) for tool in tools] or None,
                add_generation_prompt=open_turn,
                **self._tokens,
            )
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError) as exc:
            raise ConfigError(f"the chat template cannot render this conversation: {exc}") from exc


def _message(message: Message, guard: Guard) -> dict[str, object]:
    entry: dict[str, object] = {"role": message.role, "content": guard(message.content)}
    if message.name is not None:
        entry["name"] = guard(message.name)
    if message.tool_call_id is not None:
        entry["tool_call_id"] = guard(message.tool_call_id)
    if message.tool_calls and not message.content:
        entry["tool_calls"] = [_call(call, guard) for call in message.tool_calls]
    return entry


def _call(call: ToolCall, guard: Guard) -> dict[str, object]:
    function = {"name": guard(call.name), "arguments": _guarded(dict(call.arguments), guard)}
    return {"id": guard(call.call_id), "type": "function", "function": function}


def _tool(tool: ToolSpec, guard: Guard) -> dict[str, object]:
    function = {
        "name": guard(tool.name),
        "description": guard(tool.description),
        "parameters": _guarded(dict(tool.parameters), guard),
    }
    return {"type": "function", "function": function}


def _guarded(value: Json, guard: Guard) -> Json:
    if isinstance(value, str):
        return guard(value)
    if isinstance(value, list):
        return [_guarded(item, guard) for item in value]
    if isinstance(value, Mapping):
        return {guard(key): _guarded(item, guard) for key, item in value.items()}
    return value


class _Generation(Extension):
    """``{% generation %}``, which some templates put around the assistant's text; here without effect."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    """What the templates of Hugging Face models expect to find."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    return environment


def _to_json(value: object, indent: int | None = None, ensure_ascii: bool = False) -> str:
    """Jinja's own filter escapes for HTML, which would change what the model reads."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
