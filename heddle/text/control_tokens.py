"""Control tokens: found in text that may contain them, and kept out of text that must not.

Whoever writes ``<|im_end|>`` into a user's message or a tool's output must not end the turn. So content
is *guarded* before a chat template sees it: invisible marks go into everything that looks like a control
token, and every such mark already there is doubled. The template's own control tokens stay whole. After
the rendered text is cut at control tokens, the marks come out again and the rest is encoded as plain text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_MARK = "\ufdd0"
"""A noncharacter, which Unicode reserves for use inside a program."""

_MARKS = re.compile(f"{_MARK}({_MARK}?)")


class ControlTokens:
    """The control tokens of one vocabulary, by their text; those of a single character are no use here."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        self._ids = {text: token_id for text, token_id in ids.items() if len(text) > 1}
        longest_first = sorted(self._ids, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def __contains__(self, text: str) -> bool:
        return text in self._ids

    def split(self, text: str) -> Iterator[str | int]:
        """The text as control tokens (their ids) and what lies between (never empty)."""
        position = 0
        for match in self._pattern.finditer(text):
            if match.start() > position:
                yield text[position : match.start()]
            yield self._ids[match[0]]
            position = match.end()
        if position < len(text):
            yield text[position:]

    def at_start(self, text: str) -> str | None:
        """The control token with which ``text`` begins."""
        match = self._pattern.match(text)
        return match[0] if match else None

    def guard(self, content: str) -> str:
        """``content`` in which nothing is a control token; :meth:`unguard` undoes it."""
        if _MARK in content:
            content = content.replace(_MARK, _MARK * 2)
        return self._pattern.sub(lambda match: _MARK.join(match[0]) + _MARK, content)

    @staticmethod
    def unguard(text: str) -> str:
        """The text without the marks of :meth:`guard`; concatenations of guarded texts are fine too."""
        return _MARKS.sub(r"\1", text) if _MARK in text else text
