"""What a mock is started with: SGLang's arguments by their names, and a pace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from heddle.planning.profile import DegreeProfile
from heddle.testing.mock_sglang.store import SharedStore

Script = Callable[[Sequence[int]], Sequence[int]]
"""From a prompt to what is sampled for it; cut off at the request's limit. After an interruption it is asked
with the prompt of the new request."""


@dataclass(frozen=True, slots=True)
class MockTiming:
    """How long steps take. The default takes no time: tokens come as fast as the event loop turns."""

    decode_s: tuple[float, ...] = (0.0,)
    """Seconds of a decoding step with 1, 2, 3 ... running requests; the last entry holds for more."""
    prefill_s_per_token: float = 0.0

    @classmethod
    def from_profile(cls, degree: DegreeProfile, *, batch: int, speed: float = 1.0) -> MockTiming:
        """The pace of a worker of this degree, up to ``batch`` requests, ``speed`` times as fast."""
        steps = degree.step_table(batch)[1:] / speed
        rate = degree.prefill_tokens_per_s
        return cls(tuple(float(s) for s in steps), 0.0 if rate is None else 1.0 / (rate * speed))

    def decode(self, batch: int) -> float:
        """Seconds of one step of ``batch`` running requests, at least 1."""
        return self.decode_s[min(batch, len(self.decode_s)) - 1]


@dataclass(frozen=True, slots=True)
class MockSettings:
    """Names and defaults are those of SGLang's arguments, except where a text says otherwise."""

    model_path: str = "mock"
    """Seeds what is sampled: servers with the same path give the same greedy tokens."""
    weight_version: str = "default"
    context_length: int = 8192
    max_running_requests: int = 8
    max_total_tokens: int = 16_384
    """Tokens that the KV pool holds."""
    max_queued_requests: int | None = None
    page_size: int = 1
    chunked_prefill_size: int = 512
    enable_priority_scheduling: bool = False
    schedule_low_priority_values_first: bool = False
    priority_scheduling_preemption_threshold: int = 10
    disable_priority_preemption: bool = False
    default_priority_value: int | None = None
    enable_session_radix_cache: bool = False
    incremental_streaming_output: bool = False
    enable_metrics: bool = False
    tp_size: int = 1
    api_key: str | None = None

    vocabulary: int = 1024
    """As a real server, one that is given an id beyond it dies."""
    end_id: int = 2
    mean_tokens: int | None = None
    """An end of turn comes after about so many tokens; ``None``: never by itself."""
    script: Script | None = None
    """What is sampled, in place of ids that look random."""
    checkpoints: tuple[str, ...] = ()
    """Paths from which weights can be loaded, besides ``model_path`` and directories that exist."""
    timing: MockTiming = field(default_factory=MockTiming)
    store: SharedStore | None = None
    """A hierarchical cache's storage, shared with other mocks: finished pages are written through."""
    host_tokens: int = 0
    """Of a hierarchical cache's host memory."""
    seed: int = 0
    """Of sampling at a temperature, which no request's own seed determines."""

    disconnect_grace_s: float = 2.0
    """From the end of a stream to the abort of whatever has its id then."""
    health_s: float = 1.0
    """Longest step between two looks of ``/health`` for a sign of life."""
    health_timeout_s: float = 20.0

    @property
    def longest_prompt(self) -> int:
        """A few tokens below both the context and the KV pool."""
        return min(self.context_length, self.max_total_tokens) - 6
