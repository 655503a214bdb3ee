"""What a mock's scheduler has done so far, for ``/v1/loads`` and ``/metrics``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Tally:
    """Counters from the start. A step has batch size b and takes t microseconds."""

    steps: int = 0
    batches: float = 0.0
    micros: float = 0.0
    batches_squared: float = 0.0
    products: float = 0.0
    decoded_tokens: int = 0
    generated_tokens: int = 0
    """Those that prefills sample included."""
    last_throughput: float = 0.0
    """Tokens per second in the last decoding step; 0 where it took no time."""
    prefilled_tokens: int = 0
    """Computed in prompts, what preemptions cost included."""
    prefill_s: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    retracted: int = 0

    def decoded(self, batch: int, seconds: float, tokens: int) -> None:
        """Account for one decoding step."""
        micros = seconds * 1e6
        self.steps += 1
        self.batches += batch
        self.micros += micros
        self.batches_squared += batch * batch
        self.products += batch * micros
        self.decoded_tokens += tokens
        self.last_throughput = tokens / seconds if seconds > 0 else 0.0

    @property
    def decode_moments(self) -> list[float] | None:
        """As SGLang sends them; ``None`` before the first step."""
        if not self.steps:
            return None
        sums = (self.steps, self.batches, self.micros, self.batches_squared, self.products)
        return [*(float(value) for value in sums), float(self.decoded_tokens)]

    @property
    def hit_rate(self) -> float:
        """Share of prompts that was cached."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0
