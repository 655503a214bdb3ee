"""Wrong requests: each is refused with a 4xx that names the path, and nothing starts."""

from __future__ import annotations

import asyncio
import json

import pytest
from rest_harness import IMPATIENT, MAX_BODY, error_of, make_batch, raw_exchange, serving
from scripted_service import ScriptedService

from heddle.errors import StoreError

JSON_HEADERS = {"Content-Type": "application/json"}

GOOD = make_batch()
PROMPT = GOOD["prompts"][0]


def with_prompt(**fields: object) -> dict[str, object]:
    """A batch of four prompts whose last has these fields, too."""
    return {"prompts": [PROMPT, PROMPT, PROMPT, {**PROMPT, **fields}]}


WRONG_BATCHES: list[tuple[str, dict[str, object], str, str]] = [
    ("unknown field", {**GOOD, "sample_per_prompt": 4}, "unknown_field", "sample_per_prompt"),
    ("unknown nested field", with_prompt(tsk={}), "unknown_field", "prompts[3].tsk"),
    ("odd key", {**GOOD, "odd key": 4}, "unknown_field", '["odd key"]'),
    ("missing field", {}, "missing_field", "prompts"),
    ("missing task", {"prompts": [PROMPT, {}]}, "missing_field", "prompts[1].task"),
    ("wrong type", with_prompt(task="2 + 2"), "invalid_value", "prompts[3].task"),
    ("string for a number", {**GOOD, "samples_per_prompt": "4"}, "invalid_value", "samples_per_prompt"),
    ("bool for a number", {**GOOD, "samples_per_prompt": True}, "invalid_value", "samples_per_prompt"),
    ("float for an integer", {**GOOD, "samples_per_prompt": 1.5}, "invalid_value", "samples_per_prompt"),
    ("no samples", {**GOOD, "samples_per_prompt": 0}, "invalid_value", "samples_per_prompt"),
    ("no prompts", {"prompts": []}, "invalid_value", "prompts"),
    ("range", {**GOOD, "sampling": {"top_p": 0}}, "invalid_value", "sampling.top_p"),
    ("nested range", {**GOOD, "limits": {"max_steps": -1}}, "invalid_value", "limits.max_steps"),
    ("unknown parser", {**GOOD, "tools": {"parser": "xml"}}, "invalid_value", "tools.parser"),
    ("id with a slash", {**GOOD, "batch_id": "../etc/passwd"}, "invalid_value", "batch_id"),
    ("id with a newline", {**GOOD, "batch_id": "a\n"}, "invalid_value", "batch_id"),
    ("unknown environment", {**GOOD, "environment": "chess"}, "invalid_request", "environment"),
    (
        "unknown environment of one",
        with_prompt(environment="go"),
        "invalid_request",
        "prompts[3].environment",
    ),
    ("prompt too long", with_prompt(task={"q": "x" * 3000}), "invalid_request", "prompts[3].task"),
]


@pytest.mark.parametrize(
    ("body", "code", "path"), [case[1:] for case in WRONG_BATCHES], ids=[c[0] for c in WRONG_BATCHES]
)
async def test_a_wrong_batch_is_refused_by_the_name_of_its_field(
    body: dict[str, object], code: str, path: str
) -> None:
    """The field at fault is named in one notation, and no batch comes to be."""
    service = ScriptedService()
    async with serving(service) as http:
        response = await http.post("/v1/batches", json=body)

    assert (400, code, path) == error_of(response)
    assert service.known == {}


WRONG_TEXTS: list[tuple[str, bytes, str, str]] = [
    ("truncated", b'{"prompts": [', "body", "line 1 column 14 (character 13)"),
    ("trailing", b"{} x", "body", "line 1 column 4 (character 3)"),
    ("on a later line", b'{\n "a": 1,\n}', "body", "line 3 column 1"),
    ("empty", b"", "body", "empty"),
    ("not utf-8", b'{"a": "\xff"}', "body", "byte 7"),
    ("duplicate key", b'{"prompts": [], "prompts": []}', "prompts", "duplicate"),
    ("duplicate below", b'{"prompts": [{"task": {"q": 1, "q": 2}}]}', "prompts[0].task.q", "duplicate"),
    ("nan", b'{"sampling": {"temperature": NaN}}', "sampling.temperature", "finite"),
    ("infinity", b'{"prompts": [{"task": {"x": [1, -Infinity]}}]}', "prompts[0].task.x[1]", "finite"),
    ("overflow", b'{"sampling": {"temperature": 1e999}}', "sampling.temperature", "finite"),
    ("huge integer", b'{"n": 123456789012345678901234567890}', "n", "64 bits"),
    ("absurd integer", b'{"n": ' + b"9" * 6000 + b"}", "n", "64 bits"),
    ("lone surrogate", b'{"prompts": [{"task": {"q": "\\ud800"}}]}', "prompts[0].task.q", "surrogate"),
    ("surrogate key", b'{"prompts": [{"task": {"\\udc00": 1}}]}', "prompts[0].task", "surrogate"),
    ("deep", b'{"prompts": ' + b"[" * 90 + b"]" * 90 + b"}", "prompts" + "[0]" * 63, "nested"),
    ("very deep", b"[" * 40_000 + b"]" * 40_000, "body", "nested"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "path", "words"), [c[1:] for c in WRONG_TEXTS], ids=[c[0] for c in WRONG_TEXTS]
)
async def test_bad_json_is_refused_with_its_place(body: bytes, path: str, words: str) -> None:
    """What is not strict JSON is refused with a position or a path."""
    async with serving(ScriptedService()) as http:
        response = await http.post("/v1/batches", content=body, headers=JSON_HEADERS)

    assert (400, "bad_json", path) == error_of(response)
    assert words in response.json()["error"]["message"]


async def test_all_wrong_fields_are_listed_and_the_first_one_leads() -> None:
    """One answer names every wrong field, so that a caller mends them at once."""
    body = {"prompts": [{"task": 1}, {}], "samples_per_prompt": 0, "nonsense": 1}
    async with serving(ScriptedService()) as http:
        error = (await http.post("/v1/batches", json=body)).json()["error"]

    assert error["path"] == "prompts[0].task"
    paths = [detail["path"] for detail in error["details"]]
    assert paths == ["prompts[0].task", "prompts[1].task", "samples_per_prompt", "nonsense"]


@pytest.mark.parametrize(
    ("query", "path"),
    [
        ("limit=abc", "query.limit"),
        ("limit=0", "query.limit"),
        ("limit=1001", "query.limit"),
        ("wait=-1", "query.wait"),
        ("wait=nan", "query.wait"),
        ("wait=inf", "query.wait"),
        ("limt=5", "query.limt"),
        ("limit=1&limit=2", "query.limit"),
        ("after=nonsense", "query.after"),
        ("after=%0a", "query.after"),
    ],
)
async def test_a_bad_query_names_its_parameter(query: str, path: str) -> None:
    """Query values are as strict as bodies."""
    async with serving(ScriptedService()) as http:
        await http.post("/v1/batches", json=GOOD)
        response = await http.get(f"/v1/batches/b0/trajectories?{query}")

    assert (400, path) == (response.status_code, response.json()["error"]["path"])


@pytest.mark.parametrize(
    "bad", ["..%2f..%2fetc%2fpasswd", "%00", "a%0d%0ab", "-a", "x" * 300, "%c3%a9", "a%20b"]
)
@pytest.mark.parametrize(
    ("method", "template", "path"),
    [
        ("GET", "/v1/batches/{}", "path.batch_id"),
        ("DELETE", "/v1/batches/{}", "path.batch_id"),
        ("GET", "/v1/batches/{}/trajectories", "path.batch_id"),
        ("GET", "/v1/trajectories/{}", "path.trajectory_id"),
        ("GET", "/v1/trajectories/{}/explain", "path.trajectory_id"),
        ("DELETE", "/v1/workers/{}", "path.worker_id"),
    ],
)
async def test_ids_are_checked_before_anyone_sees_them(
    method: str, template: str, path: str, bad: str
) -> None:
    """Traversals, control characters and oversized ids never reach the service."""
    async with serving(ScriptedService()) as http:
        response = await http.request(method, template.format(bad))

    assert (400, "invalid_id", path) == error_of(response)


async def test_a_path_that_climbs_is_an_unknown_route() -> None:
    """Dots in the path are not resolved against anything."""
    async with serving(ScriptedService()) as http:
        answer = await raw_exchange(
            http, b"GET /static/../../etc/passwd HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )

    assert answer.startswith(b"HTTP/1.1 404 ")
    assert b'"code":"unknown_route"' in answer


@pytest.mark.parametrize(
    "content_type",
    ["text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin-1", ""],
)
async def test_a_body_that_is_not_json_is_refused_as_such(content_type: str) -> None:
    """Other content types are 415; a browser's form cannot submit a batch."""
    async with serving(ScriptedService()) as http:
        headers = {"Content-Type": content_type}
        response = await http.post("/v1/batches", content=json.dumps(GOOD), headers=headers)

    assert error_of(response) == (415, "unsupported_media_type", "header.Content-Type")


async def test_compressed_bodies_are_refused() -> None:
    """No decompression, so no decompression bomb."""
    headers = {**JSON_HEADERS, "Content-Encoding": "gzip"}
    async with serving(ScriptedService()) as http:
        response = await http.post("/v1/batches", content=b"\x1f\x8b", headers=headers)

    assert error_of(response) == (415, "unsupported_media_type", "header.Content-Encoding")


async def test_unknown_routes_and_methods_answer_in_the_same_shape() -> None:
    """404 and 405 of the router look like every other error."""
    async with serving(ScriptedService()) as http:
        unknown = await http.get("/v2/batches")
        method = await http.put("/v1/batches", json=GOOD)

    assert error_of(unknown) == (404, "unknown_route", None)
    assert error_of(method) == (405, "method_not_allowed", None)
    assert method.headers["Allow"] == "GET, POST"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/batches/none"),
        ("DELETE", "/v1/batches/none"),
        ("GET", "/v1/batches/none/trajectories"),
        ("GET", "/v1/trajectories/none-g0-t0"),
        ("GET", "/v1/trajectories/none-g0-t0/explain"),
        ("DELETE", "/v1/workers/none"),
    ],
)
async def test_what_does_not_exist_is_404(method: str, path: str) -> None:
    """Unknown ids are not found, whatever is asked of them."""
    async with serving(ScriptedService()) as http:
        response = await http.request(method, path)

    assert error_of(response) == (404, "not_found", None)


async def test_what_the_engine_cannot_do_is_a_409() -> None:
    """New weights on an engine that cannot take them."""
    async with serving(ScriptedService()) as http:
        response = await http.post("/v1/weights", json={"version": 1, "path": "x"})
        listed = await http.post("/v1/weights", json=[1])

    assert error_of(response) == (409, "unsupported_by_engine", None)
    assert error_of(listed) == (400, "invalid_value", "body")


async def test_arguments_to_a_call_without_arguments_are_refused() -> None:
    """Whoever sends a body to pause has misunderstood something."""
    service = ScriptedService()
    async with serving(service) as http:
        response = await http.post("/v1/pause", json={"seconds": 3})

    assert error_of(response) == (400, "unknown_field", "body")
    assert not service.paused


async def test_a_broken_store_is_a_503() -> None:
    """The store's failures can be retried by the caller."""
    service = ScriptedService()
    service.failure = StoreError("disk full at /secret/place")
    async with serving(service) as http:
        response = await http.get("/v1/batches")

    assert error_of(response) == (503, "store_unavailable", None)
    assert "secret" not in response.text


async def test_the_unexpected_is_a_500_with_an_opaque_id(capsys: pytest.CaptureFixture[str]) -> None:
    """The caller gets an id, the log gets the id and the traceback."""
    service = ScriptedService()
    service.failure = ZeroDivisionError("inner detail")
    async with serving(service) as http:
        response = await http.get("/v1/batches")

    error = response.json()["error"]
    assert error_of(response) == (500, "internal_error", None)
    assert "inner detail" not in response.text
    logged = capsys.readouterr().out
    assert error["error_id"] in logged
    assert "inner detail" in logged


async def test_a_body_over_the_limit_is_refused_by_its_length() -> None:
    """Content-Length alone is enough to refuse."""
    async with serving(ScriptedService()) as http:
        response = await http.post("/v1/batches", content=b" " * (MAX_BODY + 1), headers=JSON_HEADERS)

    assert error_of(response) == (413, "body_too_large", "body")


async def test_a_body_at_the_limit_is_read() -> None:
    """The limit itself is still allowed."""
    body = json.dumps(GOOD).encode()
    async with serving(ScriptedService()) as http:
        padded = body + b" " * (MAX_BODY - len(body))
        response = await http.post("/v1/batches", content=padded, headers=JSON_HEADERS)

    assert response.status_code == 201


POST_HEAD = b"POST /v1/batches HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


async def test_a_chunked_body_over_the_limit_is_cut_while_it_streams() -> None:
    """Without Content-Length the limit holds all the same, long before the body ends."""
    chunk = b"%x\r\n" % 50_000 + b" " * 50_000 + b"\r\n"
    async with serving(ScriptedService()) as http:
        answer = await raw_exchange(
            http, POST_HEAD + b"Transfer-Encoding: chunked\r\n\r\n", chunk, chunk, chunk
        )

    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"code":"body_too_large"' in answer


async def test_a_body_that_stalls_is_given_up() -> None:
    """A client that promises a body and sends none of it is answered 408 and dropped."""
    async with serving(ScriptedService(), timing=IMPATIENT) as http:
        answer = await raw_exchange(http, POST_HEAD + b"Content-Length: 1000\r\n\r\n", b"{")

    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"code":"body_timeout"' in answer


async def test_a_body_that_trickles_is_given_up() -> None:
    """A byte now and then does not keep a request alive for ever."""
    async with serving(ScriptedService(), timing=IMPATIENT) as http:
        trickle = [b" "] * 25
        answer = await raw_exchange(http, POST_HEAD + b"Content-Length: 1000\r\n\r\n", *trickle, pause_s=0.1)

    assert answer.startswith(b"HTTP/1.1 408 ")


async def test_broken_chunks_are_the_client_s_fault() -> None:
    """A body whose framing is wrong is never read to an end that it does not have."""
    async with serving(ScriptedService(), timing=IMPATIENT) as http:
        answer = await raw_exchange(
            http,
            POST_HEAD + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n",
            b"zz\r\n{}\r\n",
            pause_s=0.05,
        )

    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 408 "))


async def test_a_client_that_leaves_in_its_body_starts_nothing() -> None:
    """Half a submission is none."""
    service = ScriptedService()
    async with serving(service) as http:
        _, writer = await asyncio.open_connection(http.base_url.host, http.base_url.port)
        writer.write(POST_HEAD + b"Content-Length: 1000\r\n\r\n{")
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        response = await http.get("/v1/batches")

    assert response.json()["batches"] == []
