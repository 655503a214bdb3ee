"""What follows an assistant's turn, learnt from the chat template itself.

Heddle never renders a conversation twice: it appends to the ids that were sent and sampled. That is
right only where the template is *append-only*: a longer conversation's text begins with the shorter
one's, and what is added does not depend on what came before. This is proved on probe conversations when
a template is loaded; one that fails (it rewrites earlier turns, say by stripping their reasoning) is a
``ConfigError`` then, instead of wrong ids later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from heddle.errors import ConfigError
from heddle.text.control_tokens import ControlTokens
from heddle.text.template import ChatTemplate, Guard
from heddle.types import Message, Role, ToolSpec

_OPENING = (Message("user", "Question"),)
_PROBE_TOOL = ToolSpec("probe_tool", "Probe.", {"type": "object", "properties": {}})
_PROBE_ANSWERS = (
    "Answer",
    '<tool_call>\n{"name": "probe_tool", "arguments": {}}\n</tool_call>',
    "<think>\nReasoning\n</think>\n\nAnswer",
)
_PROBE_CONTENTS = ("Content", " \n\tspaced\n ", "", "two\n\nlines", "<think>x</think> y", '{"a": [1]}')


@dataclass(frozen=True, slots=True)
class Affixes:
    """How a template writes a message of one role: ``head + content + tail``, whatever the content."""

    head: str
    tail: str


@dataclass(frozen=True, slots=True)
class TurnSeams:
    """The fixed texts of a template between turns."""

    end_of_turn: str
    """The control token that a model samples to end its turn."""
    after_turn: str
    """What the template writes between that token and the next message."""
    opening: str
    """The opening of the assistant's turn."""
    affixes: Mapping[Role, Affixes]
    """For the roles that are written in that simple form, alone and beside each other."""


class ObservationTemplate:
    """The append-only part of a chat template. Raises ``ConfigError`` where there is none."""

    def __init__(self, template: ChatTemplate, control: ControlTokens) -> None:
        self._template = template
        self._before = template.render(_OPENING, open_turn=True)
        closing = self._added(_PROBE_ANSWERS[0], (), open_turn=False)
        end_of_turn = control.at_start(closing)
        if end_of_turn is None:
            raise ConfigError(
                f"the chat template ends an assistant's turn with {closing[:40]!r}, which is no control "
                "token: give another template"
            )
        self._end_of_turn = end_of_turn
        self._prove_append_only()
        self.seams = self._find_seams(closing.removeprefix(end_of_turn))

    def text(self, messages: Sequence[Message], *, turn_closed: bool, guard: Guard = str) -> str:
        """What the template adds for ``messages`` and the opening of the next assistant's turn."""
        added = self._added(_PROBE_ANSWERS[0], messages, open_turn=True, guard=guard)
        return added.removeprefix(self._end_of_turn) if turn_closed else added

    def _added(self, answer: str, messages: Sequence[Message], *, open_turn: bool, guard: Guard = str) -> str:
        conversation = (*_OPENING, Message("assistant", answer), *messages)
        rendered = self._template.render(conversation, open_turn=open_turn, guard=guard)
        return _suffix(rendered, self._before + answer)

    def _prove_append_only(self) -> None:
        """Two turns, every kind of answer and observation, with tools and without."""
        roles = _observing_roles(self._template)
        for role, answer, tools in product(roles, _PROBE_ANSWERS, ((), (_PROBE_TOOL,))):
            first, second = Message(role, "first"), Message(role, "second")
            conversation = [*_OPENING]
            text = self._template.render(conversation, tools, open_turn=True)
            for observation in (first, second):
                conversation += [Message("assistant", answer), observation]
                text += answer + self.text([observation], turn_closed=False)
            if self._template.render(conversation, tools, open_turn=True) != text:
                raise ConfigError(
                    f"the chat template is not append-only: after {answer[:12]!r} and a {role} message it "
                    "rewrites what came before; give another template"
                )

    def _find_seams(self, after_turn: str) -> TurnSeams:
        unopened = self._template.render(_OPENING, open_turn=False)
        opening = _suffix(self._before, unopened)
        affixes: dict[Role, Affixes] = {}
        for role in _observing_roles(self._template):
            text = self.text([Message(role, "\x00")], turn_closed=True)
            head, marker, tail = text.removeprefix(after_turn).removesuffix(opening).partition("\x00")
            if marker:
                affixes[role] = Affixes(head, tail)
        seams = TurnSeams(self._end_of_turn, after_turn, opening, affixes)
        simple = all(
            seams_text(seams, probe) == self.text(probe, turn_closed=True) for probe in _probes(affixes)
        )
        return seams if simple else TurnSeams(self._end_of_turn, after_turn, opening, {})


def seams_text(seams: TurnSeams, messages: Sequence[Message]) -> str:
    """The observation after a closed turn, put together from the seams."""
    written = (
        seams.affixes[message.role].head + message.content + seams.affixes[message.role].tail
        for message in messages
    )
    return seams.after_turn + "".join(written) + seams.opening


def supports_tools(template: ChatTemplate) -> bool:
    """Whether the template writes tool schemas, and messages of the role ``tool``."""
    try:
        text = template.render(_OPENING, (_PROBE_TOOL,), open_turn=True)
    except ConfigError:
        return False
    return _PROBE_TOOL.name in text and "tool" in _observing_roles(template)


def _observing_roles(template: ChatTemplate) -> tuple[Role, ...]:
    """The roles whose messages this template can write after an assistant's turn."""
    return tuple(role for role in _OBSERVING if _writes(template, role))


_OBSERVING: tuple[Role, ...] = ("user", "tool")


def _writes(template: ChatTemplate, role: Role) -> bool:
    conversation = (*_OPENING, Message("assistant", "Answer"), Message(role, "Observed"))
    try:
        return "Observed" in template.render(conversation, open_turn=True)
    except ConfigError:
        return False


def _probes(roles: Mapping[Role, Affixes]) -> Iterator[list[Message]]:
    for role, content in product(roles, _PROBE_CONTENTS):
        yield [Message(role, content)]
        yield [Message(role, content, name="probe_tool", tool_call_id="call_0_0")]
    for first, second in product(roles, roles):
        yield [Message(first, "one"), Message(second, "two")]
        yield [Message(first, "one"), Message(second, "two"), Message(first, "three")]


def _suffix(text: str, prefix: str) -> str:
    if not text.startswith(prefix):
        raise ConfigError("the chat template is not append-only: it rewrites earlier turns; give another")
    return text[len(prefix) :]
