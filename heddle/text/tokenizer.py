"""The tokenizer of an agent loop: text to ids and back, prompts, and observations to append.

Local and fast, so it runs on the event loop. Control tokens come from the chat template (and from
:meth:`TextTokenizer.encode`, whose caller asks for them), never from the content of a message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from heddle.errors import ConfigError
from heddle.text.control_tokens import ControlTokens
from heddle.text.observation import ObservationTemplate, TurnSeams, supports_tools
from heddle.text.template import CHATML_TOOLS, ChatTemplate
from heddle.text.vocabulary import Vocabulary, load_vocabulary
from heddle.types import Message, Role, ToolSpec

_UNKNOWN_TOKEN = "\ufffd".encode()

_GENERATION_ENDS = (
    *("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>"),
    *("<end_of_turn>", "<EOT>", "<｜end▁of▁sentence｜>", "</s>"),  # noqa: RUF001 - so it is spelled
    *("<|fim_pad|>", "<|fim_repo|>", "<|repo_name|>", "<reponame>", "<|file_sep|>"),
)
"""Control tokens at which llama.cpp ends a generation, whatever the model file declares."""


@dataclass(frozen=True, slots=True)
class _Frame:
    """What surrounds the content of a message: ids that never change, and text that merges with it."""

    before: list[int]
    text_before: str
    text_after: str
    after: list[int]


class TextTokenizer:
    """Implements ``Tokenizer`` of :mod:`heddle.agent.ports`. Made by :func:`load_tokenizer`."""

    def __init__(self, vocabulary: Vocabulary, template: ChatTemplate) -> None:
        self._bpe = vocabulary.bpe
        self._bytes = vocabulary.token_bytes
        self._gap_id = vocabulary.gap_id
        self._control = ControlTokens(vocabulary.control_ids)
        self._template = template
        self._observation = ObservationTemplate(template, self._control)
        seams = self._observation.seams
        self._end_of_turn_id = vocabulary.control_ids[seams.end_of_turn]
        ends = {seams.end_of_turn, vocabulary.eos_token, *_GENERATION_ENDS}
        self._end_ids = frozenset(i for text, i in vocabulary.control_ids.items() if text in ends)
        self._after_turn = self.encode(seams.after_turn)
        self._opening = self.encode(seams.opening)
        self._frames = self._make_frames(seams)

    @property
    def end_of_turn_id(self) -> int:
        """The control token with which the template ends an assistant's turn."""
        return self._end_of_turn_id

    @property
    def end_ids(self) -> frozenset[int]:
        """Every id at which an engine ends a generation; ``end_of_turn_id`` is one of them."""
        return self._end_ids

    @property
    def vocabulary_size(self) -> int:
        """Ids run from 0 to one less."""
        return len(self._bytes)

    def encode(self, text: str) -> list[int]:
        """Tokenise; control tokens in the text become their single ids, nothing is added."""
        return self._encode(text, guarded=False)

    def encode_plain(self, text: str) -> list[int]:
        """Tokenise text that must not hold control tokens: what looks like one is spelled out."""
        try:
            ids: list[int] = self._bpe.encode(text, add_special_tokens=False).ids
        except (UnicodeEncodeError, TypeError):  # half of a surrogate pair, which no encoding has
            whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            ids = self._bpe.encode(whole, add_special_tokens=False).ids
        gap = self._gap_id
        return [token_id for token_id in ids if token_id != gap] if gap in ids else ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of these ids, control tokens included; undecodable bytes become U+FFFD."""
        table = self._bytes
        try:
            joined = b"".join([table[token_id] for token_id in token_ids])
        except IndexError:  # an engine's vocabulary may be padded beyond the tokenizer's
            known = len(table)
            joined = b"".join([table[i] if i < known else _UNKNOWN_TOKEN for i in token_ids])
        return joined.decode("utf-8", "replace")

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        """The prompt: chat template, tool schemas and the opening of the assistant's turn.

        Raises ``ConfigError`` where the template cannot write these messages.
        """
        text = self._template.render(messages, tools, open_turn=True, guard=self._control.guard)
        return self._encode(text, guarded=True)

    def render_text(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> str:
        """The text that :meth:`render` tokenises, for people to read."""
        return self._template.render(messages, tools, open_turn=True)

    def render_observation(self, messages: Sequence[Message], *, turn_closed: bool) -> list[int]:
        """What follows an assistant's turn; see ``Tokenizer``. Raises ``ConfigError`` as :meth:`render`."""
        if not all(message.role in self._frames for message in messages):
            return self._render_observation_slowly(messages, turn_closed=turn_closed)
        ids = [] if turn_closed else [self._end_of_turn_id]
        ids += self._after_turn
        for message in messages:
            frame = self._frames[message.role]
            ids += frame.before
            ids += self.encode_plain(frame.text_before + message.content + frame.text_after)
            ids += frame.after
        ids += self._opening
        return ids

    def _render_observation_slowly(self, messages: Sequence[Message], *, turn_closed: bool) -> list[int]:
        """By the template itself, which alone knows how it writes these messages."""
        text = self._observation.text(messages, turn_closed=turn_closed, guard=self._control.guard)
        return self._encode(text, guarded=True)

    def _encode(self, text: str, *, guarded: bool) -> list[int]:
        ids: list[int] = []
        for piece in self._control.split(text):
            if isinstance(piece, int):
                ids.append(piece)
            else:
                ids += self.encode_plain(self._control.unguard(piece) if guarded else piece)
        return ids

    def _make_frames(self, seams: TurnSeams) -> dict[Role, _Frame]:
        """Frames whose fixed parts are cut off at control tokens, across which nothing merges.

        Without a control token on both sides of every seam there are none.
        """
        heads = [affixes.head for affixes in seams.affixes.values()]
        if not all(self._control.at_start(text) for text in (*heads, seams.opening)):
            return {}
        frames = {}
        for role, affixes in seams.affixes.items():
            head, tail = list(self._control.split(affixes.head)), list(self._control.split(affixes.tail))
            if not tail or all(isinstance(piece, str) for piece in tail):
                return {}
            text_before = head.pop() if isinstance(head[-1], str) else ""
            text_after = tail.pop(0) if isinstance(tail[0], str) else ""
            frames[role] = _Frame(
                before=self._ids(head),
                text_before=str(text_before),
                text_after=str(text_after),
                after=self._ids(tail),
            )
        return frames

    def _ids(self, pieces: Sequence[str | int]) -> list[int]:
        return [i for p in pieces for i in ([p] if isinstance(p, int) else self.encode_plain(p))]


def load_tokenizer(
    path: Path, *, template: str = "auto", strftime_now: Callable[[str], str] | None = None
) -> TextTokenizer:
    """From a GGUF file, a Hugging Face directory or its ``tokenizer.json``.

    ``template``: ``model`` is the one that comes with the model, ``chatml`` Heddle's own; ``auto`` takes
    the model's where it can write tools, else Heddle's; anything else is the path of a Jinja file.
    ``strftime_now`` tells a template the date; without it, templates fall back to what they say then.
    Raises ``ConfigError``.
    """
    vocabulary = load_vocabulary(path)

    def compiled(source: str) -> ChatTemplate:
        return ChatTemplate(
            source,
            bos_token=vocabulary.bos_token,
            eos_token=vocabulary.eos_token,
            strftime_now=strftime_now,
        )

    return TextTokenizer(vocabulary, _choose_template(vocabulary, template, compiled))


def _choose_template(
    vocabulary: Vocabulary, choice: str, compiled: Callable[[str], ChatTemplate]
) -> ChatTemplate:
    if choice not in ("auto", "model", "chatml"):
        return compiled(_read_template(Path(choice)))
    if choice in ("auto", "model") and vocabulary.chat_template is not None:
        own = compiled(vocabulary.chat_template)
        if choice == "model" or supports_tools(own):
            return own
    if choice == "model":
        raise ConfigError("the model brings no chat template: choose 'chatml' or give a file")
    if not {"<|im_start|>", "<|im_end|>"} <= vocabulary.control_ids.keys():
        raise ConfigError(
            "the model's chat template cannot write tools, and its vocabulary is not ChatML: "
            "give a chat template file"
        )
    return compiled(CHATML_TOOLS)


def _read_template(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"cannot read chat template {path}: {exc}") from exc
