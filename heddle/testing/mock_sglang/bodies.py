"""Reads the body of ``POST /generate`` as SGLang does: strict about sampling, deaf to unknown fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from heddle.testing.mock_sglang.requests import Asked
from heddle.testing.mock_sglang.settings import MockSettings

DEFAULT_MAX_NEW_TOKENS = 128

SAMPLING_FIELDS = frozenset(
    [
        *("max_new_tokens", "stop", "stop_token_ids", "stop_regex", "temperature", "top_p", "top_k", "min_p"),
        *(
            "frequency_penalty",
            "presence_penalty",
            "repetition_penalty",
            "min_new_tokens",
            "n",
            "json_schema",
        ),
        *("regex", "ebnf", "structural_tag", "ignore_eos", "skip_special_tokens", "logit_bias", "choice"),
        *("spaces_between_special_tokens", "no_stop_trim", "stream_interval", "sampling_seed"),
        *("custom_params", "beam_width", "watermark"),
    ]
)


class BadBody(Exception):
    """A body that is refused before anything of it is looked at: HTTP 400."""


class BadRequest(Exception):
    """A request that is refused by its contents: HTTP 400, or an error event in a stream."""


def check_contract(body: Mapping[str, Any]) -> None:
    """Raises ``BadBody`` for a sampling parameter that does not exist."""
    sampling = body.get("sampling_params") or {}
    if not isinstance(sampling, Mapping):
        raise BadBody("sampling_params must be an object")
    for name in sampling:
        if name not in SAMPLING_FIELDS:
            expected = ", ".join(f"`{field}`" for field in sorted(SAMPLING_FIELDS))
            raise BadBody(f"unknown field `{name}`, expected one of {expected}")


def read_request(body: Mapping[str, Any], settings: MockSettings, *, rid: str) -> Asked:
    """Raises ``BadRequest``. ``rid`` is what the request is called where it says nothing."""
    input_ids = body.get("input_ids")
    if not isinstance(input_ids, list) or any(isinstance(entry, list) for entry in input_ids):
        raise BadRequest("the mock takes one list of input_ids in a request")
    if not input_ids:
        raise BadRequest("input_ids cannot be empty.")
    _check_length(len(input_ids), settings)
    sampling = body.get("sampling_params") or {}
    temperature = sampling.get("temperature", 1.0)
    if temperature < 0:
        raise BadRequest(f"temperature must be a non-negative finite number, got {temperature}.")
    wanted = sampling.get("max_new_tokens", DEFAULT_MAX_NEW_TOKENS)
    if wanted < 0:
        raise BadRequest(f"max_new_tokens must be at least 0, got {wanted}.")
    if len(input_ids) + wanted > settings.context_length:
        raise BadRequest(
            "Requested token count exceeds the model's maximum context length of "
            f"{settings.context_length} tokens."
        )
    room = settings.max_total_tokens - len(input_ids) - 1
    script = None if settings.script is None else list(settings.script(input_ids))
    return Asked(
        rid=body.get("rid") or rid,
        input_ids=input_ids,
        max_new_tokens=max(0, min(wanted, room)),
        greedy=temperature == 0,
        ignore_eos=bool(sampling.get("ignore_eos", False)),
        stop_ids=frozenset(sampling.get("stop_token_ids") or ()),
        bias={int(token_id): value for token_id, value in (sampling.get("logit_bias") or {}).items()},
        stream=bool(body.get("stream", False)),
        return_logprob=bool(body.get("return_logprob", False)),
        priority=body.get("priority"),
        namespace=f"{body.get('extra_key')}|{body.get('cache_salt')}",
        session_id=body.get("session_id"),
        script=script,
    )


def _check_length(tokens: int, settings: MockSettings) -> None:
    if tokens > settings.context_length:
        raise BadRequest(
            f"The input ({tokens} tokens) is longer than the model's context length "
            f"({settings.context_length} tokens)."
        )
    if tokens > settings.longest_prompt:
        raise BadRequest(
            f"Input length ({tokens} tokens) exceeds the maximum allowed length "
            f"({settings.longest_prompt} tokens)."
        )
