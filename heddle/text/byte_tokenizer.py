"""A tokenizer without a vocabulary: one id per UTF-8 byte, and ids for the ends of a turn.

An honest ``Tokenizer`` for engines without a real model (``FakeEngine``): round trips are exact and
nothing needs to be fetched.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from heddle.types import Message, ToolSpec

TURN_START = 256
TURN_END = 257
_MARKS = {TURN_START: "<|turn|>", TURN_END: "<|end|>"}


class ByteTokenizer:
    """Implements ``Tokenizer``. Text never becomes a control id: only ``render`` places those."""

    @property
    def end_of_turn_id(self) -> int:
        return TURN_END

    @property
    def end_ids(self) -> frozenset[int]:
        return frozenset({TURN_END})

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8", errors="surrogatepass"))

    def decode(self, token_ids: Sequence[int]) -> str:
        try:
            return bytes(token_ids).decode("utf-8", errors="replace")
        except ValueError:  # ids that are no bytes
            return self._decode_marked(token_ids)

    def _decode_marked(self, token_ids: Sequence[int]) -> str:
        pieces: list[str] = []
        run = bytearray()
        for token_id in token_ids:
            if token_id < TURN_START:
                run.append(token_id)
                continue
            pieces.append(run.decode("utf-8", errors="replace"))
            pieces.append(_MARKS.get(token_id, "\ufffd"))
            run.clear()
        pieces.append(run.decode("utf-8", errors="replace"))
        return "".join(pieces)

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        ids: list[int] = []
        if tools:
            described = "\n".join(f"{t.name} {json.dumps(t.parameters)} {t.description}" for t in tools)
            ids += self._turn("tools", described)
        for message in messages:
            ids += self._turn(message.role, message.content)
        return [*ids, TURN_START, *b"assistant\n"]

    def render_observation(self, messages: Sequence[Message], *, turn_closed: bool) -> list[int]:
        ids = [] if turn_closed else [TURN_END]
        for message in messages:
            ids += self._turn(message.role, message.content)
        return [*ids, TURN_START, *b"assistant\n"]

    def _turn(self, role: str, content: str) -> list[int]:
        return [TURN_START, *self.encode(f"{role}\n{content}"), TURN_END]
