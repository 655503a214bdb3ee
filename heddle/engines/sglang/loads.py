"""``GET /v1/loads``: what a server is doing, and how long its decoding steps take."""

from __future__ import annotations

from pydantic import BaseModel, TypeAdapter, ValidationError

from heddle.decoding import DecodeMoments
from heddle.errors import EngineUnavailable
from heddle.types import EngineLoad

PATHS = ("/v1/loads?include=core", "/get_load")
"""Now, and in older servers."""


class RankLoad(BaseModel):
    """One data-parallel rank. Counters go up from the start of the server."""

    dp_rank: int = 0
    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    num_used_tokens: int | None = None
    max_total_num_tokens: int | None = None
    max_running_requests: int | None = None
    token_usage: float | None = None
    gen_throughput: float | None = None
    """Tokens per second, lately."""
    cache_hit_rate: float | None = None
    utilization: float | None = None
    total_prefill_uncached_tokens: int = 0
    """Computed in prompts, what preemptions cost included."""
    decode_moments: list[float] | None = None
    """Over all decoding steps, of batch size b and duration t in microseconds: n, sum b, sum t, sum b*b,
    sum b*t, sum of generated tokens. ``None`` before the first."""


class Loads(BaseModel):
    loads: list[RankLoad]


class OldLoad(BaseModel):
    """One rank, as servers before ``/v1/loads`` describe it."""

    dp_rank: int = 0
    num_reqs: int = 0
    num_waiting_reqs: int = 0
    num_tokens: int | None = None


_ANY = TypeAdapter(Loads | list[OldLoad])


def parse_loads(body: bytes) -> list[RankLoad]:
    """Raises ``EngineUnavailable`` where that is not what a server answers."""
    try:
        answer = _ANY.validate_json(body)
    except ValidationError as exc:
        raise EngineUnavailable(f"the engine described its load as {body[:80]!r}") from exc
    if isinstance(answer, Loads):
        return answer.loads
    return [
        RankLoad(
            dp_rank=old.dp_rank,
            num_running_reqs=old.num_reqs - old.num_waiting_reqs,
            num_waiting_reqs=old.num_waiting_reqs,
            num_used_tokens=old.num_tokens,
        )
        for old in answer
    ]


def engine_load(ranks: list[RankLoad]) -> EngineLoad:
    """All ranks as one; rates are summed, shares averaged."""
    return EngineLoad(
        running=sum(rank.num_running_reqs for rank in ranks),
        waiting=sum(rank.num_waiting_reqs for rank in ranks),
        kv_used_tokens=_total([rank.num_used_tokens for rank in ranks]),
        kv_capacity_tokens=_total([rank.max_total_num_tokens for rank in ranks]),
        cache_hit_rate=_mean([rank.cache_hit_rate for rank in ranks]),
        decoding=_decoding([rank.decode_moments for rank in ranks]),
        extra={
            **_known("gen_throughput", [rank.gen_throughput for rank in ranks], share=False),
            **_known("token_usage", [rank.token_usage for rank in ranks], share=True),
            **_known("utilization", [rank.utilization for rank in ranks], share=True),
        },
    )


def _decoding(counts: list[list[float] | None]) -> DecodeMoments | None:
    """Over the steps of all ranks, in seconds; ``None`` where none tells."""
    known = [moments for moments in counts if moments is not None and len(moments) >= 5]
    if not known:
        return None
    steps, batch, micros, batch_squared, batch_micros = (
        sum(column) for column in zip(*(moments[:5] for moments in known), strict=True)
    )
    return DecodeMoments(steps, batch, micros / 1e6, batch_squared, batch_micros / 1e6)


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _total(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _known(name: str, values: list[float | None], *, share: bool) -> dict[str, float]:
    known = [value for value in values if value is not None]
    if not known:
        return {}
    return {name: sum(known) / len(known) if share else sum(known)}
