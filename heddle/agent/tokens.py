"""The token arrays of one trajectory: append-only, equal length, compact.

Invariant: ``prompt_ids + response_ids`` is exactly what the next generation is sent. Nothing that was
appended is ever changed or tokenised again.

Stored are the ids, the logprobs of sampled tokens only, and runs of tokens that share origin and weight
version: 12 bytes a sampled token and 4 a given one, since thousands of trajectories are open at once.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class _Run(NamedTuple):
    length: int
    sampled: bool
    weight_version: int


class TokenBuffer:
    """Prompt and response of one trajectory. The prompt may be shared by the samples of its group."""

    __slots__ = ("_checksum", "_logprobs", "_response", "_runs", "prompt_ids")

    def __init__(self, prompt_ids: Sequence[int]) -> None:
        self.prompt_ids = prompt_ids
        self._response = array("i")
        self._logprobs = array("d")
        self._runs: list[_Run] = []
        self._checksum: int | None = None

    def __len__(self) -> int:
        """Tokens of the whole context."""
        return len(self.prompt_ids) + len(self._response)

    @property
    def sampled_tokens(self) -> int:
        return len(self._logprobs)

    def append_sampled(
        self, ids: Sequence[int], logprobs: Sequence[float], version_runs: Sequence[tuple[int, int]]
    ) -> None:
        """Tokens that the model sampled (mask 1); ``version_runs`` are versions, each with a length.

        Raises ``ValueError`` on unequal lengths. Arrays are taken over fastest.
        """
        versions = sum(length for _, length in version_runs)
        if not len(ids) == len(logprobs) == versions:
            raise ValueError(f"{len(ids)} ids, {len(logprobs)} logprobs, {versions} versions")
        self._response.extend(ids)
        self._logprobs.extend(logprobs)
        for version, length in version_runs:
            self._append_run(_Run(length, True, version))

    def append_given(self, ids: Sequence[int], weight_version: int) -> None:
        """Observations and forced prefixes (mask 0, logprob 0.0)."""
        self._response.extend(ids)
        self._append_run(_Run(len(ids), False, weight_version))

    @property
    def prompt_checksum(self) -> int:
        """Of the prompt's ids (CRC-32)."""
        if self._checksum is None:
            self._checksum = zlib.crc32(array("i", self.prompt_ids).tobytes())
        return self._checksum

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
        return [int(run.sampled) for run in self._runs for _ in range(run.length)]

    @property
    def response_logprobs(self) -> list[float]:
        return list(self._spread_logprobs())

    @property
    def weight_versions(self) -> list[int]:
        return [run.weight_version for run in self._runs for _ in range(run.length)]

    def _append_run(self, run: _Run) -> None:
        if not run.length:
            return
        last = self._runs[-1] if self._runs else run
        if self._runs and last.sampled == run.sampled and last.weight_version == run.weight_version:
            self._runs[-1] = _Run(last.length + run.length, run.sampled, run.weight_version)
        else:
            self._runs.append(run)

    def _spread_logprobs(self) -> Iterator[float]:
        start = 0
        for run in self._runs:
            if run.sampled:
                yield from self._logprobs[start : start + run.length]
                start += run.length
            else:
                yield from [0.0] * run.length
