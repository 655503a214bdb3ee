"""Builders shared by the engine tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from heddle.agent.ports import GenerationRequest, TokenChunk
from heddle.types import Json, SamplingParams

SEEDED = SamplingParams(seed=1)
GREEDY = SamplingParams(temperature=0.0)


def make_request(
    request_id: str = "r1",
    *,
    prompt_ids: Sequence[int] = (1, 2, 3),
    max_new_tokens: int = 8,
    sampling: SamplingParams = SEEDED,
    json_schema: Mapping[str, Json] | None = None,
    deadline_s: float = 60.0,
    first_token_deadline_s: float = 60.0,
) -> GenerationRequest:
    """A request with everything defaulted but what a test is about."""
    return GenerationRequest(
        request_id=request_id,
        prompt_ids=prompt_ids,
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        json_schema=json_schema,
        deadline_s=deadline_s,
        first_token_deadline_s=first_token_deadline_s,
    )


def ignore(chunk: TokenChunk) -> None:
    """For tests that look at the result only."""
