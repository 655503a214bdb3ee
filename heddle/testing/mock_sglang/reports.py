"""What a mock says of itself, in the shapes of a real server."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from heddle.testing.mock_sglang.cache import PrefixCache
from heddle.testing.mock_sglang.scheduler import MockScheduler
from heddle.testing.mock_sglang.settings import MockSettings

VERSION = "0.5.23"
"""Of the server that it takes after."""


def model_info(settings: MockSettings, weight_version: str) -> dict[str, Any]:
    """``GET /model_info``."""
    return {
        "model_path": settings.model_path,
        "served_model_name": settings.model_path,
        "tokenizer_path": settings.model_path,
        "is_generation": True,
        "weight_version": weight_version,
        "load_format": "dummy",
        "disaggregation_mode": "null",
    }


def server_info(settings: MockSettings) -> dict[str, Any]:
    """``GET /server_info``: what it was started with, whatever has become of it."""
    return {
        "model_path": settings.model_path,
        "served_model_name": settings.model_path,
        "skip_tokenizer_init": True,
        "context_length": settings.context_length,
        "max_running_requests": settings.max_running_requests,
        "max_queued_requests": settings.max_queued_requests,
        "max_total_num_tokens": settings.max_total_tokens,
        "max_req_input_len": settings.longest_prompt,
        "page_size": settings.page_size,
        "chunked_prefill_size": settings.chunked_prefill_size,
        "enable_priority_scheduling": settings.enable_priority_scheduling,
        "schedule_low_priority_values_first": settings.schedule_low_priority_values_first,
        "priority_scheduling_preemption_threshold": settings.priority_scheduling_preemption_threshold,
        "disable_priority_preemption": settings.disable_priority_preemption,
        "default_priority_value": settings.default_priority_value,
        "enable_session_radix_cache": settings.enable_session_radix_cache,
        "enable_hierarchical_cache": settings.store is not None or settings.host_tokens > 0,
        "hicache_storage_backend": None if settings.store is None else "mock",
        "incremental_streaming_output": settings.incremental_streaming_output,
        "enable_metrics": settings.enable_metrics,
        "speculative_algorithm": None,
        "grammar_backend": "none",
        "tp_size": settings.tp_size,
        "dp_size": 1,
        "weight_version": settings.weight_version,
        "version": VERSION,
        "internal_states": [{"effective_max_running_requests_per_dp": settings.max_running_requests}],
    }


def loads(settings: MockSettings, scheduler: MockScheduler, cache: PrefixCache) -> dict[str, Any]:
    """``GET /v1/loads``."""
    now = time.time()
    rank = {
        "timestamp": now,
        "dp_rank": 0,
        "num_running_reqs": len(scheduler.running),
        "num_waiting_reqs": len(scheduler.waiting),
        "num_used_tokens": cache.used,
        "num_total_tokens": cache.used,
        "max_total_num_tokens": settings.max_total_tokens,
        "max_running_requests": settings.max_running_requests,
        "token_usage": round(cache.used / settings.max_total_tokens, 4),
        "gen_throughput": scheduler.tally.last_throughput,
        "cache_hit_rate": scheduler.tally.hit_rate,
        "utilization": 0.0,
        "total_prefill_uncached_tokens": scheduler.tally.prefilled_tokens,
        "total_prefill_busy_us": int(scheduler.tally.prefill_s * 1e6),
        "decode_moments": scheduler.tally.decode_moments,
        "queues": {"waiting": len(scheduler.waiting), "grammar": 0, "paused": 0, "retracted": 0},
    }
    return {
        "timestamp": datetime.fromtimestamp(now, UTC).isoformat(),
        "version": VERSION,
        "accelerator": None,
        "num_accelerators": settings.tp_size,
        "loads": [rank],
    }


def metrics(settings: MockSettings, scheduler: MockScheduler, cache: PrefixCache, *, aborted: int) -> str:
    """``GET /metrics``, in Prometheus' text format."""
    labels = f'{{model_name="{settings.model_path}",tp_rank="0"}}'
    samples = [
        ("gauge", "num_running_reqs", len(scheduler.running)),
        ("gauge", "num_queue_reqs", len(scheduler.waiting)),
        ("gauge", "num_used_tokens", cache.used),
        ("gauge", "token_usage", cache.used / settings.max_total_tokens),
        ("gauge", "gen_throughput", scheduler.tally.last_throughput),
        ("gauge", "cache_hit_rate", scheduler.tally.hit_rate),
        ("gauge", "max_total_num_tokens", settings.max_total_tokens),
        ("counter", "prompt_tokens_total", scheduler.tally.prompt_tokens),
        ("counter", "generation_tokens_total", scheduler.tally.generated_tokens),
        ("counter", "cached_tokens_total", scheduler.tally.cached_tokens),
        ("counter", "num_retracted_requests_total", scheduler.tally.retracted),
        ("counter", "num_aborted_requests_total", aborted),
    ]
    lines: list[str] = []
    for kind, name, value in samples:
        lines += [f"# TYPE sglang:{name} {kind}", f"sglang:{name}{labels} {float(value)}"]
    return "\n".join(lines) + "\n"
