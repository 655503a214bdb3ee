"""How many tokens a trajectory may still sample: its own limits, and the engine's context."""

from __future__ import annotations

from dataclasses import dataclass

from heddle.agent.order import PreparedPrompt
from heddle.agent.tokens import TokenBuffer
from heddle.types import Limits, StopReason


@dataclass(frozen=True, slots=True)
class TokenRoom:
    """Follows the buffer as it grows."""

    limits: Limits
    prompt: PreparedPrompt
    buffer: TokenBuffer
    context_tokens: int

    def for_step(self, step_index: int) -> int:
        """What the step may sample at most."""
        recorded = self.prompt.step_tokens
        wanted = self.limits.max_tokens_per_step
        if recorded is not None and step_index < len(recorded):
            wanted = recorded[step_index]
        return min(wanted, self.limits.max_tokens - self.buffer.sampled_tokens, self.in_context)

    def takes_observation(self, tokens: int) -> bool:
        """Whether an observation of this length leaves room for a step of one token."""
        return self.in_context - tokens >= 1

    def spent_limit(self) -> StopReason | None:
        """The limit that leaves no room for a further token, if one does."""
        if self.buffer.sampled_tokens >= self.limits.max_tokens:
            return StopReason.MAX_TOKENS
        return StopReason.CONTEXT_OVERFLOW if self.in_context <= 0 else None

    @property
    def in_context(self) -> int:
        """Room for sampled tokens behind the forced ones of a next step."""
        return self.context_tokens - len(self.buffer) - len(self.prompt.forced_ids)
