"""The prefix cache of the fake engine: which token ids were computed before, and in what order."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

PREFIX_BLOCK_TOKENS = 16
"""Granularity at which a prefix is found again."""

BYTES_PER_TOKEN = 8
_BLOCK_BYTES = PREFIX_BLOCK_TOKENS * BYTES_PER_TOKEN


def encode_ids(token_ids: Sequence[int]) -> bytes:
    """Ids as bytes, which hash and check-sum at the speed of C; encodings concatenate."""
    return array("q", token_ids).tobytes()


class KnownPrefix(NamedTuple):
    """How far a sequence was admitted."""

    tokens: int
    key: int
    end: int
    """Bytes of whole blocks."""


class PrefixCache:
    """Which prefixes were computed, in blocks. A block is known by a hash over itself and all before it.

    Where the newer half of the capacity is full, the older half is forgotten.
    """

    def __init__(self, capacity_blocks: int) -> None:
        self._half = max(capacity_blocks // 2, 1)
        self._young: set[int] = set()
        self._old: set[int] = set()

    def __len__(self) -> int:
        return len(self._young | self._old)

    def known(self, encoded: bytes) -> int:
        """Tokens from the front that are known, in whole blocks; nothing becomes known by asking."""
        tokens, key = 0, 0
        for start in range(0, len(encoded) - _BLOCK_BYTES + 1, _BLOCK_BYTES):
            key = hash((key, encoded[start : start + _BLOCK_BYTES]))
            if key not in self._young and key not in self._old:
                break
            tokens += PREFIX_BLOCK_TOKENS
        return tokens

    def admit(self, encoded: bytes, known: KnownPrefix | None = None) -> KnownPrefix:
        """Make a sequence known, going on from ``known`` where its beginning was admitted before.

        The result's ``tokens`` counts what was known from the front at the first admission.
        """
        young, old = self._young, self._old
        tokens, key, end = known or (0, 0, 0)
        searching = known is None
        for start in range(end, len(encoded) - _BLOCK_BYTES + 1, _BLOCK_BYTES):
            end = start + _BLOCK_BYTES
            key = hash((key, encoded[start:end]))
            if searching:
                searching = key in young or key in old
                tokens += PREFIX_BLOCK_TOKENS * searching
            young.add(key)
        if len(young) > self._half:
            self._old, self._young = young, set()
        return KnownPrefix(tokens, key, end)
