"""The token arrays of one trajectory: append-only, equal length, compact.

Invariant: ``prompt_ids + response_ids`` is exactly what the next generation is sent. Nothing that was
appended is ever changed or tokenised again.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence


class TokenBuffer:
    """Prompt and response of one trajectory. The prompt may be shared by the samples of its group."""

    __slots__ = ("_logprobs", "_mask", "_response", "_versions", "prompt_ids", "sampled_tokens")

    def __init__(self, prompt_ids: Sequence[int]) -> None:
        self.prompt_ids = prompt_ids
        self.sampled_tokens = 0
        self._response = array("i")
        self._mask = array("b")
        self._logprobs = array("d")
        self._versions = array("i")

    def __len__(self) -> int:
        """Tokens of the whole context."""
        return len(self.prompt_ids) + len(self._response)

    def append_sampled(
        self, ids: Sequence[int], logprobs: Sequence[float], weight_versions: Sequence[int]
    ) -> None:
        """Tokens that the model sampled (mask 1). Raises ``ValueError`` on unequal lengths."""
        if not len(ids) == len(logprobs) == len(weight_versions):
            raise ValueError(f"{len(ids)} ids, {len(logprobs)} logprobs, {len(weight_versions)} versions")
        self._response.extend(ids)
        self._mask.extend([1] * len(ids))
        self._logprobs.extend(logprobs)
        self._versions.extend(weight_versions)
        self.sampled_tokens += len(ids)

    def append_given(self, ids: Sequence[int], weight_version: int) -> None:
        """Observations and forced prefixes (mask 0, logprob 0.0)."""
        self._response.extend(ids)
        self._mask.extend([0] * len(ids))
        self._logprobs.extend([0.0] * len(ids))
        self._versions.extend([weight_version] * len(ids))

    @property
    def last_id(self) -> int:
        """Of the whole context, which is never empty."""
        return self._response[-1] if self._response else self.prompt_ids[-1]

    def context(self, *tails: Sequence[int]) -> list[int]:
        """What to send an engine: the whole context, and ``tails`` that are not yet part of it."""
        ids = [*self.prompt_ids, *self._response]
        for tail in tails:
            ids.extend(tail)
        return ids

    @property
    def response_ids(self) -> list[int]:
        return self._response.tolist()

    @property
    def response_mask(self) -> list[int]:
        return self._mask.tolist()

    @property
    def response_logprobs(self) -> list[float]:
        return self._logprobs.tolist()

    @property
    def weight_versions(self) -> list[int]:
        return self._versions.tolist()
