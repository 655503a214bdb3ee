"""Whatever is sent to the surface, the answer is a 2xx or a 4xx in the one shape, never a 500."""

from __future__ import annotations

import json

import httpx
import orjson
from hypothesis import given, settings
from hypothesis import strategies as st
from rest_harness import make_batch, run_with_server
from scripted_service import ScriptedService

from heddle.api.bodies import validate
from heddle.api.problems import Problem
from heddle.api.schemas import BatchRequest
from heddle.api.strictjson import parse_json
from heddle.errors import InvalidRequest

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=[]), max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)

FIELDS = st.sampled_from(
    ["prompts", "batch_id", "environment", "samples_per_prompt", "sampling", "limits", "tools", "task", "x"]
)


def parse(body: bytes) -> BatchRequest | None:
    """The request that a body is, or None where it is refused as it should be."""
    try:
        return validate(BatchRequest, parse_json(body))
    except (InvalidRequest, Problem) as refused:
        if not (refused.path and refused.message):
            raise AssertionError("refused without a name") from refused
        return None


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_any_bytes_are_refused_or_parsed(body: bytes) -> None:
    """Random bytes end in a named refusal."""
    assert parse(body) is None


@given(st.dictionaries(FIELDS, JSON_VALUES, max_size=5))
@settings(deadline=None)
def test_any_json_is_refused_or_survives_to_a_record(fields: dict[str, object]) -> None:
    """JSON of any shape is refused by name, or can be encoded by every encoder that follows."""
    request = parse(json.dumps({**make_batch(), **fields}).encode("utf-8", "surrogatepass"))
    if request is not None:
        assert orjson.dumps(request.model_dump())
        assert request == BatchRequest.model_validate_json(request.model_dump_json())


@given(st.data())
@settings(deadline=None)
def test_a_good_batch_with_one_wound_is_refused_or_still_good(data: st.DataObject) -> None:
    """Cutting, doubling or changing a byte of a good body never does anything unexpected."""
    body = json.dumps(make_batch(prompts=2, samples_per_prompt=2, batch_id="b")).encode()
    at = data.draw(st.integers(0, len(body) - 1))
    wound = data.draw(st.binary(max_size=3))
    parse(body[:at] + wound + body[at + data.draw(st.integers(0, 5)) :])


@given(
    method=st.sampled_from(["GET", "POST", "DELETE", "PUT"]),
    path=st.sampled_from(
        ["/v1/batches", "/v1/batches/{}", "/v1/batches/{}/trajectories", "/v1/trajectories/{}", "/v1/workers",
         "/v1/workers/{}", "/v1/pause", "/v1/weights", "/{}"]
    ),
    part=st.text(max_size=12),
    query=st.dictionaries(st.sampled_from(["after", "wait", "limit", "x"]), st.text(max_size=6), max_size=3),
    body=st.binary(max_size=60) | JSON_VALUES.map(lambda v: json.dumps(v).encode("utf-8", "surrogatepass")),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_any_request_is_answered_in_the_one_shape(
    method: str, path: str, part: str, query: dict[str, str], body: bytes
) -> None:
    """Over a socket, with any id, query and body: no 500, and every error is JSON with a code."""

    async def exchange(http: httpx.AsyncClient) -> httpx.Response:
        url = httpx.URL(path.format("PART"), params=query)
        raw = url.raw_path.replace(b"PART", httpx.URL("/", params={"p": part}).query[2:] or b"x")
        headers = {"Content-Type": "application/json"}
        return await http.request(method, url.copy_with(raw_path=raw), content=body, headers=headers)

    response = run_with_server(ScriptedService(), exchange)

    assert response.status_code < 500
    if response.status_code >= 400:
        assert response.json()["error"]["code"]
