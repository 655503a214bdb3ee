"""The wire of llama.cpp's server: what is sent, and what each answer means."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from engine_builders import make_request
from hypothesis import given
from hypothesis import strategies as st

from heddle.engines.embedded.protocol import (
    MAX_LINE_BYTES,
    StreamEvent,
    checked_tokens,
    completion_body,
    error_of_event,
    error_of_status,
    finish_reason,
    read_events,
)
from heddle.engines.embedded.schema import check_schema
from heddle.errors import EngineRejected, EngineUnavailable
from heddle.types import FinishReason, SamplingParams


async def in_pieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    """``data`` as a connection might deliver it."""
    for start in range(0, len(data), size):
        yield data[start : start + size]


def token_event(token_id: int, predicted: int) -> dict[str, Any]:
    """The event of one sampled token, as the server writes it."""
    return {
        "index": 0,
        "content": "x",
        "tokens": [token_id],
        "stop": False,
        "tokens_predicted": predicted,
        "completion_probabilities": [{"id": token_id, "token": "x", "logprob": -0.5}],
    }


@pytest.mark.parametrize("size", [1, 7, 4096])
async def test_events_survive_any_cut_of_the_stream(size: int) -> None:
    """Comments and blank lines are skipped, wherever the bytes are split."""
    stream = b"".join(b": ping\n\ndata: " + orjson.dumps(token_event(i, i + 1)) + b"\r\n\n" for i in range(3))
    events = [event async for event in read_events(in_pieces(stream, size))]
    assert [event.tokens for event in events] == [[0], [1], [2]]


@pytest.mark.parametrize(
    "stream",
    [
        b"<html>hello</html>\n",
        b"data: {not json}\n",
        b"data: [1, 2]\n",
        b'data: {"tokens": "abc"}\n',
        b"\xff\xfe\x00\n",
        b"x" * (MAX_LINE_BYTES + 1),
    ],
)
async def test_what_is_no_event_stream_is_an_unavailable_engine(stream: bytes) -> None:
    """Garbage of every kind gets the same typed error."""
    with pytest.raises(EngineUnavailable):
        _ = [event async for event in read_events(in_pieces(stream, 65_536))]


@given(st.binary(max_size=300))
async def test_no_bytes_raise_anything_else(data: bytes) -> None:
    """Whatever arrives, it parses or it is an unavailable engine."""
    try:
        events = [event async for event in read_events(in_pieces(data + b"\n", 16))]
    except EngineUnavailable:
        return
    assert all(isinstance(event, StreamEvent) for event in events)


def test_a_withheld_token_is_an_error() -> None:
    """The server counts three sampled tokens but reported two: the trajectory would have a hole."""
    event = StreamEvent.model_validate(token_event(9, 3))
    assert checked_tokens(event, already=2) == ([9], [-0.5])
    with pytest.raises(EngineUnavailable, match="withheld 1"):
        checked_tokens(event, already=1)


def test_ids_and_probabilities_must_belong_together() -> None:
    """A probability of another token is no probability."""
    event = StreamEvent.model_validate({**token_event(9, 1), "tokens": [8]})
    with pytest.raises(EngineUnavailable, match="do not belong"):
        checked_tokens(event, already=0)


def test_only_the_samplers_asked_for_are_named() -> None:
    """The defaults sample the raw distribution; nothing of the server's own chain remains."""
    plain = completion_body(make_request(), tag=5)
    picky = completion_body(
        make_request(sampling=SamplingParams(temperature=0.7, top_p=0.9, top_k=40, min_p=0.05)), tag=6
    )
    assert plain["samplers"] == ["temperature"]
    assert picky["samplers"] == ["temperature", "top_k", "top_p", "min_p"]
    assert (plain["seed"], "seed" in picky) == (1, False)
    assert plain["prompt"] == [1, 2, 3]


@pytest.mark.parametrize(
    ("status", "expected"),
    [(400, EngineRejected), (413, EngineRejected), (500, EngineUnavailable), (404, EngineUnavailable)],
)
def test_a_status_becomes_the_error_that_it_means(status: int, expected: type[Exception]) -> None:
    """The server's own words are kept, in whatever form they come."""
    told = error_of_status(status, b'{"error": {"code": 400, "message": "too long", "type": "x"}}')
    muttered = error_of_status(status, b"<h1>oops</h1>")
    assert (type(told), type(muttered)) == (expected, expected)
    assert "too long" in str(told)
    assert "oops" in str(muttered)


def test_an_error_in_the_stream_becomes_the_error_that_it_means() -> None:
    """A grammar that fails is the request's fault although the server says 500."""
    events = [
        StreamEvent.model_validate({"error": {"code": code, "message": message}})
        for code, message in [(500, "out of memory"), (500, "empty grammar stack"), (400, "bad")]
    ]
    errors = [type(error_of_event(event.error)) for event in events if event.error is not None]
    assert errors == [EngineUnavailable, EngineRejected, EngineRejected]


def test_finish_reasons() -> None:
    """Stop and length are all that we ask for; anything else is not understood."""
    assert finish_reason(StreamEvent(stop_type="eos")) is FinishReason.STOP
    assert finish_reason(StreamEvent(stop_type="limit")) is FinishReason.LENGTH
    with pytest.raises(EngineUnavailable):
        finish_reason(StreamEvent(stop_type="word"))


def test_a_usable_schema_passes() -> None:
    """Descriptions may be in any language: they prescribe nothing."""
    check_schema({"type": "object", "description": "π", "properties": {"a": {"enum": ["x", 1, None]}}})


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nonsense"},
        {"type": "string", "pattern": "("},
        {"enum": ["≤"]},
        {"properties": {"größe": {"type": "integer"}}},
        {"anyOf": [{"const": {"é": 1}}]},
    ],
)
def test_a_schema_that_the_server_would_ignore_is_rejected(schema: dict[str, Any]) -> None:
    """Silence would return unconstrained text under the name of a constrained one."""
    with pytest.raises(EngineRejected, match="json_schema"):
        check_schema(schema)
