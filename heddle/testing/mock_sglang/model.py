"""What a mock samples: a function of everything before, so that interruptions change nothing."""

from __future__ import annotations

import math
import random
import zlib
from array import array
from collections.abc import Sequence

_FORBIDDEN = -1000.0
"""A logit bias from here on forbids an id."""


def checksum(token_ids: Sequence[int], start: int = 0) -> int:
    """Over ids in their order; goes on from ``start``."""
    return zlib.crc32(array("q", token_ids).tobytes(), start)


class MockModel:
    """Weights are a number: others give other tokens."""

    def __init__(self, *, vocabulary: int, end_id: int, mean_tokens: int | None, seed: int) -> None:
        self._vocabulary = vocabulary
        self._end_id = end_id
        self._mean_tokens = mean_tokens
        self._rng = random.Random(seed)
        self.weights = 0

    def load(self, path: str) -> None:
        """Take the weights of this path."""
        self.weights = zlib.crc32(path.encode())

    def sample(self, state: int, *, greedy: bool, bias: dict[int, float]) -> tuple[int, float]:
        """The next id after a context of this checksum, and its logprob."""
        salt = 0 if greedy else self._rng.getrandbits(32)
        mixed = (state ^ self.weights ^ salt) * 2_654_435_761 >> 5
        token_id = mixed % self._vocabulary
        if self._mean_tokens is not None and (mixed >> 20) % self._mean_tokens == 0:
            token_id = self._end_id
        elif token_id == self._end_id:
            token_id += 1
        while bias.get(token_id, 0.0) <= _FORBIDDEN:
            token_id = (token_id + 1) % self._vocabulary
        return token_id, -math.log(self._vocabulary) - (mixed % 89) / 1000.0
