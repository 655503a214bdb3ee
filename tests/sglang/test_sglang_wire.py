"""SGLang's wire: what is sent, what each answer means, and that no token is lost or counted twice."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.agent.ports import GenerationRequest
from heddle.decoding import DecodeMoments
from heddle.engines.sglang.loads import engine_load, parse_loads
from heddle.engines.sglang.priority import LEVELS, WARM_UP_LEVEL, priority_level
from heddle.engines.sglang.protocol import (
    StreamEvent,
    cache_key,
    error_of_event,
    error_of_status,
    generate_body,
    parse_event,
    version_number,
)
from heddle.engines.sglang.stream import MAX_LINE_BYTES, TokenAccount, read_events
from heddle.errors import EngineError, EngineInterrupted, EngineRejected, EngineUnavailable
from heddle.types import SamplingParams

TOKENS = st.lists(st.integers(0, 1000), min_size=1, max_size=30)


def event(ids: list[int], count: int | None, **meta: Any) -> StreamEvent:
    """An event whose tokens have their own number, negated, as logprob."""
    entries = [[-float(token_id), token_id, None] for token_id in ids]
    fields = {"completion_tokens": count, "output_token_logprobs": entries, **meta}
    return StreamEvent.model_validate({"output_ids": ids, "meta_info": fields})


async def in_pieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    """``data`` as a connection might deliver it."""
    for start in range(0, len(data), size):
        yield data[start : start + size]


def request(**changes: Any) -> GenerationRequest:
    """A request with everything defaulted but what a test is about."""
    fields: dict[str, Any] = {"request_id": "r", "prompt_ids": [1, 2], "max_new_tokens": 7}
    return GenerationRequest(**{**fields, "sampling": SamplingParams(), **changes})


@pytest.mark.parametrize("size", [1, 7, 4096])
async def test_events_survive_any_cut_of_the_stream(size: int) -> None:
    """Comments and blank lines are skipped, wherever the bytes are split; nothing after the end counts."""
    lines = [b": ping\n\ndata: " + orjson.dumps({"output_ids": [i]}) + b"\r\n\n" for i in range(3)]
    stream = b"".join([*lines, b"data: [DONE]\n\n", b"data: {}\n\n"])
    events = [event async for event in read_events(in_pieces(stream, size))]
    assert [event.output_ids for event in events] == [[0], [1], [2]]


@pytest.mark.parametrize(
    "stream",
    [
        b"<html>hello</html>\n",
        b"data: {not json}\n",
        b"data: [1, 2]\n",
        b'data: {"output_ids": [1]}\n\n',
        b"data: " + b"x" * (MAX_LINE_BYTES + 1),
        b"",
    ],
)
async def test_anything_but_a_whole_stream_is_an_error(stream: bytes) -> None:
    """Also one that ends without saying so: a dead server's connection just closes."""
    with pytest.raises(EngineUnavailable):
        async for _ in read_events(in_pieces(stream, 1 << 20)):
            pass


@given(chunks=st.lists(TOKENS, min_size=1, max_size=8), cumulative=st.booleans())
def test_tokens_are_taken_once_however_a_server_repeats_them(
    chunks: list[list[int]], cumulative: bool
) -> None:
    """Deltas and cumulative events give the same; an abort that repeats the last token adds none."""
    account, taken = TokenAccount(), list[int]()
    everything: list[int] = []
    for ids in chunks:
        everything += ids
        chunk = account.take(event(everything[:] if cumulative else ids, len(everything)))
        assert chunk is not None
        taken += chunk.token_ids
    last = event([everything[-1]], len(everything), finish_reason={"type": "abort", "message": "x"})
    assert account.take(last) is None
    assert account.take(event([], None, finish_reason={"type": "abort"})) is None
    assert taken == everything == account.token_ids
    assert account.logprobs == [-float(token_id) for token_id in everything]
    assert len(account.weight_versions) == len(everything)


@pytest.mark.parametrize(
    "broken",
    [
        event([1], 2),
        event([1, 2], 2, output_token_logprobs=[[-1.0, 1, None]]),
        event([1], 1, output_token_logprobs=[[-1.0, 2, None]]),
        event([1], 1, output_token_logprobs=None),
    ],
    ids=["hole", "few logprobs", "other ids", "no logprobs"],
)
def test_a_hole_in_the_tokens_is_an_error(broken: StreamEvent) -> None:
    """A trajectory with a hole must not reach a trainer."""
    with pytest.raises(EngineUnavailable):
        TokenAccount().take(broken)


def test_the_last_event_settles_which_weights_sampled_which_token() -> None:
    """Spans outrank what each event said when it came."""
    account = TokenAccount()
    account.take(event([1, 2], 2, weight_version="3"))
    spans = [{"version": "3", "start": 0, "end": 1}, {"version": "4", "start": 1, "end": 9}]
    account.take(event([5], 3, weight_version="4", weight_versions=spans, finish_reason={"type": "length"}))
    assert account.weight_versions == [3, 4, 4]
    assert account.version == 4


@pytest.mark.parametrize(
    ("finish", "expected"),
    [
        ({"type": "abort", "message": "no grammar", "status_code": 400}, EngineRejected),
        ({"type": "abort", "message": "a higher priority", "status_code": 503}, EngineInterrupted),
        ({"type": "abort", "message": "out of memory", "status_code": 500}, EngineUnavailable),
    ],
)
def test_an_abort_of_the_servers_own_is_an_error_by_its_code(
    finish: dict[str, Any], expected: type[EngineError]
) -> None:
    """Its tokens, which may come without logprobs, do not count."""
    account = TokenAccount()
    with pytest.raises(expected):
        account.take(event([1], 1, output_token_logprobs=None, finish_reason=finish))
    assert account.token_ids == []


def test_statuses_and_error_events_keep_the_servers_words() -> None:
    """Errors come as an object, as a bare sentence, as an outcome, or as no JSON at all."""
    bodies = [b'{"error": {"message": "too long"}}', b'{"error": "too long"}', b'{"message": "too long"}']
    for body in [*bodies, b"too long"]:
        error = error_of_status(400, body)
        assert isinstance(error, EngineRejected)
        assert "too long" in str(error)
    assert isinstance(error_of_status(503, b""), EngineInterrupted)
    assert isinstance(error_of_status(404, b"{}"), EngineUnavailable)
    duplicate = parse_event(b'{"error": {"message": "Duplicate", "code": 400}}').error
    assert duplicate is not None
    assert isinstance(error_of_event(duplicate), EngineRejected)


def test_a_body_names_everything_that_servers_have_other_defaults_for() -> None:
    """The token limit above all: 128 where it is missing."""
    body = generate_body(request(), rid="0" * 32, extra_key=cache_key(12), end_ids=(2,))
    assert body["sampling_params"] == {
        "max_new_tokens": 7,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "no_stop_trim": True,
        "stop_token_ids": [2],
    }
    assert (body["extra_key"], body["logprob_start_len"], body["stream"]) == ("wv:12", -1, True)
    assert "session_id" not in body
    assert "priority" not in body


def test_a_replayed_length_forbids_the_end() -> None:
    """The server would go on past an end of turn, but sample it."""
    sampling = generate_body(request(ignore_end=True), rid="", extra_key="", end_ids=(2, 3))[
        "sampling_params"
    ]
    assert sampling["ignore_eos"] is True
    assert set(sampling["logit_bias"]) == {"2", "3"}


@given(st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_levels_are_few_and_keep_the_order(a: float, b: float) -> None:
    """Never more than the server should see; the lowest belongs to warm-ups alone."""
    assert not a < b or priority_level(a) <= priority_level(b)
    assert WARM_UP_LEVEL < priority_level(a) < WARM_UP_LEVEL + LEVELS


def test_a_level_is_a_doubling() -> None:
    """Nobody loses a slot to a trajectory that is hardly longer."""
    levels = [priority_level(tokens) for tokens in range(40_000)]
    assert [len(list(group)) for _, group in itertools.groupby(levels)][:6] == [1, 2, 4, 8, 16, 32]
    assert max(levels) == 15


def test_versions_are_numbers_or_the_servers_default() -> None:
    """Another name would say nothing about what is older."""
    assert [version_number(name) for name in (None, "default", "7")] == [0, 0, 7]
    with pytest.raises(EngineUnavailable, match="step-7"):
        version_number("step-7")


def test_loads_of_all_ranks_are_one() -> None:
    """Counts and rates are summed, shares averaged, and what is missing stays unknown."""
    ranks = [
        {"dp_rank": i, "num_running_reqs": 2, "gen_throughput": 5.0, "cache_hit_rate": i} for i in range(2)
    ]
    load = engine_load(parse_loads(orjson.dumps({"loads": ranks})))
    assert (load.running, load.waiting, load.kv_used_tokens) == (4, 0, None)
    assert (load.extra, load.cache_hit_rate, load.decoding) == ({"gen_throughput": 10.0}, 0.5, None)
    with pytest.raises(EngineUnavailable):
        parse_loads(b'{"detail": "Not Found"}')


def test_older_servers_tell_less_of_their_load() -> None:
    """All requests, and those of them that wait."""
    [rank] = parse_loads(b'[{"dp_rank": 0, "num_reqs": 5, "num_waiting_reqs": 2, "num_tokens": 70}]')
    assert (rank.num_running_reqs, rank.num_waiting_reqs, rank.num_used_tokens) == (3, 2, 70)
    assert rank.decode_moments is None


def test_moments_of_all_ranks_are_added_in_seconds() -> None:
    """A rank that has not decoded yet adds nothing; the count of tokens that follows them is not needed."""
    ranks: list[dict[str, object]] = [
        {"decode_moments": [2, 6, 3e6, 20, 10e6, 6]},
        {"decode_moments": None},
        {"decode_moments": [1, 1, 1e6, 1, 1e6, 1]},
    ]
    load = engine_load(parse_loads(orjson.dumps({"loads": ranks})))
    assert load.decoding == DecodeMoments(3, 7, 4.0, 21, 11.0)
