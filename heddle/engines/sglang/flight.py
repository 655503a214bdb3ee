"""One generation between its call and its end."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from heddle.agent.ports import Generation, GenerationRequest
from heddle.engines.sglang.stream import TokenAccount
from heddle.types import FinishReason


@dataclass(slots=True)
class Flight:
    """Times are those of the event loop's clock."""

    request: GenerationRequest
    rid: str
    """What the server knows it by."""
    give_up_at: float
    scope: asyncio.Timeout
    """Its next deadline."""
    called_at: float
    account: TokenAccount = field(default_factory=TokenAccount)
    sent: bool = False
    """The server may have it."""
    first_token_at: float | None = None
    last_token_at: float | None = None
    aborted: bool = False
    """Its caller ended it."""
    exchange: asyncio.Task[None] | None = None
    landed: asyncio.Event = field(default_factory=asyncio.Event)

    def note_progress(self, now: float) -> None:
        """Tokens came: the next ones have as much time again, within the bound of the whole."""
        self.last_token_at = now
        if self.first_token_at is None:
            self.first_token_at = now
        if not self.scope.expired():
            self.scope.reschedule(min(self.give_up_at, now + self.request.first_token_deadline_s))

    def describe_timeout(self, now: float) -> str:
        """Which of its deadlines passed."""
        got = len(self.account.token_ids)
        if now >= self.give_up_at:
            return f"the generation was not done after {self.request.deadline_s:g} s ({got} tokens)"
        return f"no token for {self.request.first_token_deadline_s:g} s (after {got} tokens)"

    def generation(self, weight_version: int) -> Generation:
        """What came of it; the version is that of a generation without tokens."""
        account = self.account
        first_at = self.first_token_at or asyncio.get_running_loop().time()
        versions = account.weight_versions
        return Generation(
            token_ids=account.token_ids,
            logprobs=account.logprobs,
            finish_reason=FinishReason.ABORT if account.finish is None else FinishReason(account.finish.type),
            prompt_tokens=account.prompt_tokens or len(self.request.prompt_ids),
            cached_tokens=account.cached_tokens,
            weight_version=versions[-1] if versions else weight_version,
            weight_versions=versions,
            cache_sources=account.cache_sources,
            retractions=account.retractions,
            prefill_s=first_at - self.called_at,
            decode_s=(self.last_token_at or first_at) - first_at,
        )
