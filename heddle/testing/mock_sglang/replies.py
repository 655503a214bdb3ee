"""What a client is shown of a request. Fields that a server leaves out in a case are left out here."""

from __future__ import annotations

import itertools
import time
from typing import Any

from heddle.testing.mock_sglang.requests import AbortKind, MockRequest
from heddle.testing.mock_sglang.settings import MockSettings


def event(
    request: MockRequest, settings: MockSettings, weight_version: str, *, start: int, end: int
) -> dict[str, Any]:
    """One event of a stream, or the whole reply: tokens ``start`` to ``end``, where that is incremental."""
    if request.abort is AbortKind.WHILE_WAITING:
        return _aborted_waiting(request, settings, weight_version, end=end)
    if not (request.asked.stream and settings.incremental_streaming_output):
        start = 0
    meta = _meta(request, weight_version, end=end)
    meta["prompt_tokens"] = len(request.asked.input_ids)
    meta["num_retractions"] = request.retractions
    match = request.match
    cached = match.tokens if match is not None else 0
    meta["cached_tokens"] = cached
    meta["cached_tokens_details"] = _details(request, settings) if cached else None
    if request.asked.return_logprob and request.abort is not AbortKind.BY_SERVER:
        meta |= _logprobs(request, start, end)
    if settings.enable_metrics and request.finish is not None:
        meta |= _times(request)
    return {"output_ids": request.output_ids[start:end], "meta_info": meta}


def _aborted_waiting(
    request: MockRequest, settings: MockSettings, weight_version: str, *, end: int
) -> dict[str, Any]:
    """Ids of a stream of deltas are the last one again; logprobs are all of them."""
    incremental = request.asked.stream and settings.incremental_streaming_output
    ids = request.output_ids[:end]
    meta = _meta(request, weight_version, end=end)
    if request.asked.return_logprob:
        meta |= _logprobs(request, 0, end)
    return {"text": "", "output_ids": ids[-1:] if incremental else ids, "meta_info": meta}


def _meta(request: MockRequest, weight_version: str, *, end: int) -> dict[str, Any]:
    meta: dict[str, Any] = {
        "id": request.asked.rid,
        "finish_reason": request.finish,
        "weight_version": weight_version,
        "completion_tokens": end,
    }
    if request.finish is not None:
        meta["weight_versions"] = _spans(request.versions[:end], weight_version)
        meta["e2e_latency"] = (request.finished_at or 0.0) - request.received_at
    return meta


def _spans(versions: list[str], present: str) -> list[dict[str, Any]]:
    spans: list[dict[str, Any]] = []
    start = 0
    for version, group in itertools.groupby(versions):
        end = start + len(list(group))
        spans.append({"version": version, "start": start, "end": end})
        start = end
    return spans or [{"version": present, "start": 0, "end": 0}]


def _details(request: MockRequest, settings: MockSettings) -> dict[str, Any]:
    assert request.match is not None
    details: dict[str, Any] = {"device": request.match.device, "host": request.match.host}
    if settings.store is not None:
        details["storage"] = request.match.storage
        details["storage_backend"] = "mock"
    return details


def _logprobs(request: MockRequest, start: int, end: int) -> dict[str, Any]:
    pairs = zip(request.logprobs[start:end], request.output_ids[start:end], strict=True)
    return {
        "input_token_logprobs": [],
        "output_token_logprobs": [[logprob, token_id, None] for logprob, token_id in pairs],
        "output_token_logprobs_length": end,
    }


def _times(request: MockRequest) -> dict[str, Any]:
    first, last = request.first_token_at, request.finished_at
    now = time.time()
    times: dict[str, Any] = {"request_finished_ts": now, "response_sent_to_client_ts": now}
    if first is not None and last is not None:
        times["first_token_latency"] = first - request.received_at
        if last > first:
            times["decode_throughput"] = len(request.output_ids) / (last - first)
    return times
