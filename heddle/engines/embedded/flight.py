"""One generation on a llama.cpp server, between its call and its end."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from heddle.agent.ports import Generation, GenerationRequest
from heddle.types import FinishReason, SamplingParams


@dataclass(slots=True)
class Flight:
    """One generation between its call and its end."""

    request: GenerationRequest
    tag: int
    give_up_at: float
    """Loop time."""
    scope: asyncio.Timeout
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    sent_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None
    answered: bool = False
    """The server has taken the request up."""
    aborted: bool = False
    closing: bool = False
    """Its stream is over, for whatever reason; nothing can hasten it any more."""
    finish: FinishReason | None = None
    cached_tokens: int = 0
    lacking_at_most: int | None = None
    """Give up where the server would compute more of the prompt; ``None``: however much it is."""
    slot: int | None = None
    """Where the server ran it."""
    echo: SamplingParams | None = None
    landed: asyncio.Event = field(default_factory=asyncio.Event)

    def generation(self) -> Generation:
        sent_at = self.sent_at or 0.0
        first_at = self.first_token_at or sent_at
        return Generation(
            token_ids=self.token_ids,
            logprobs=self.logprobs,
            finish_reason=self.finish or FinishReason.ABORT,
            prompt_tokens=len(self.request.prompt_ids),
            cached_tokens=self.cached_tokens,
            weight_version=0,
            prefill_s=first_at - sent_at,
            decode_s=(self.last_token_at or first_at) - first_at,
            echoed_sampling=self.echo,
        )


def describe_timeout(flight: Flight) -> str:
    """Which of its deadlines has passed."""
    got = len(flight.token_ids)
    if asyncio.get_running_loop().time() >= flight.give_up_at:
        return f"the generation was not done after {flight.request.deadline_s:g} s ({got} tokens)"
    return f"no token for {flight.request.first_token_deadline_s:g} s (after {got} tokens)"
