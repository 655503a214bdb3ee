"""What cannot be true of an engine's answer. Such an answer counts as a failure of the engine."""

from __future__ import annotations

from heddle.agent.ports import Generation, TokenChunk
from heddle.types import FinishReason

MAX_TOKEN_ID = 2**31 - 1


def garbage_in_chunk(chunk: TokenChunk) -> str | None:
    """Why these cannot be tokens of a model."""
    if len(chunk.token_ids) != len(chunk.logprobs):
        return f"sent {len(chunk.token_ids)} tokens with {len(chunk.logprobs)} logprobs"
    if min(chunk.token_ids, default=0) < 0 or max(chunk.token_ids, default=0) > MAX_TOKEN_ID:
        return "sent a token id that no vocabulary has"
    return None


def garbage_in_answer(generation: Generation, streamed: int, asked_for: int) -> str | None:
    """What is wrong with an answer as a whole, of which ``streamed`` tokens came before it."""
    if streamed != len(generation.token_ids):
        return f"streamed {streamed} tokens of {len(generation.token_ids)}"
    if streamed > asked_for:
        return f"sampled {streamed} tokens where {asked_for} were asked for"
    if streamed == 0 and generation.finish_reason is not FinishReason.ABORT:
        return "sampled nothing"
    versions = len(generation.weight_versions)
    return f"named {versions} weight versions of {streamed} tokens" if versions not in (0, streamed) else None
