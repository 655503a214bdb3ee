"""Who may call: tokens, hosts, foreign sites; and what the log must not hold."""

from __future__ import annotations

import pytest
from rest_harness import error_of, make_batch, serving
from scripted_service import ScriptedService

PUBLIC = ["/healthz", "/readyz", "/", "/static/dashboard.js", "/static/dashboard.css"]
PROTECTED = [
    ("GET", "/v1/batches"),
    ("POST", "/v1/batches"),
    ("GET", "/v1/batches/b"),
    ("DELETE", "/v1/batches/b"),
    ("GET", "/v1/batches/b/trajectories"),
    ("GET", "/v1/trajectories/b-g0-t0"),
    ("GET", "/v1/trajectories/b-g0-t0/explain"),
    ("GET", "/v1/events"),
    ("GET", "/v1/workers"),
    ("POST", "/v1/workers"),
    ("DELETE", "/v1/workers/w0"),
    ("POST", "/v1/pause"),
    ("POST", "/v1/resume"),
    ("POST", "/v1/weights"),
    ("GET", "/metrics"),
    ("GET", "/openapi.json"),
    ("GET", "/no/such/route"),
]


@pytest.mark.parametrize("path", PUBLIC)
async def test_health_and_the_empty_page_need_no_token(path: str) -> None:
    """Probes and the page that asks for the token work without it."""
    async with serving(ScriptedService(), token="secret") as http:
        response = await http.get(path)

    assert response.status_code == 200


@pytest.mark.parametrize(("method", "path"), PROTECTED)
async def test_everything_else_needs_the_token(method: str, path: str) -> None:
    """Without the token not even the existence of a route is told."""
    async with serving(ScriptedService(), token="secret") as http:
        response = await http.request(method, path)

    assert error_of(response) == (401, "unauthorized", "header.Authorization")
    assert response.headers["WWW-Authenticate"] == 'Bearer realm="heddle"'


@pytest.mark.parametrize(
    "header",
    [
        "Bearer wrong",
        "Bearer secre",
        "Bearer secret2",
        "Basic secret",
        "secret",
        "Bearer",
        "Bearer s\xe9cret",
    ],
)
async def test_a_wrong_token_is_no_token(header: str) -> None:
    """Near misses and other schemes are refused alike."""
    async with serving(ScriptedService(), token="secret") as http:
        response = await http.get("/v1/batches", headers=[(b"Authorization", header.encode("latin-1"))])

    assert response.status_code == 401


async def test_the_right_token_opens(capsys: pytest.CaptureFixture[str]) -> None:
    """With the token a call works, and the token is in no log line."""
    async with serving(ScriptedService(), token="hush-hush") as http:
        headers = {"Authorization": "Bearer hush-hush"}
        submitted = await http.post("/v1/batches", json=make_batch(), headers=headers)
        refused = await http.get("/v1/batches", headers={"Authorization": "Bearer hush-wrong"})

    assert (submitted.status_code, refused.status_code) == (201, 401)
    captured = capsys.readouterr()
    assert "hush" not in captured.out + captured.err


async def test_without_a_token_only_loopback_names_are_answered() -> None:
    """A name that was rebound to this machine reaches nothing."""
    async with serving(ScriptedService()) as http:
        foreign = await http.get("/v1/batches", headers={"Host": "evil.example:8765"})
        local = await http.get("/v1/batches", headers={"Host": "localhost:1234"})

    assert error_of(foreign) == (421, "misdirected", "header.Host")
    assert local.status_code == 200


async def test_pages_of_other_sites_cannot_drive_the_server() -> None:
    """A request that a browser sends for another origin is refused, the page's own is not."""
    service = ScriptedService()
    async with serving(service) as http:
        own = f"http://{http.base_url.netloc.decode()}"
        foreign = await http.post("/v1/pause", headers={"Origin": "https://evil.example"})
        paused = service.paused
        same = await http.post("/v1/pause", headers={"Origin": own})

    assert error_of(foreign) == (403, "cross_origin", "header.Origin")
    assert not paused
    assert same.status_code == 200


async def test_every_answer_forbids_what_model_output_might_try() -> None:
    """The content policy and the type guard are on pages, data and errors alike."""
    async with serving(ScriptedService()) as http:
        answers = [await http.get(path) for path in ("/", "/v1/batches", "/nowhere")]

    assert {"default-src 'none'"} == {a.headers["Content-Security-Policy"].partition(";")[0] for a in answers}
    assert {"nosniff"} == {answer.headers["X-Content-Type-Options"] for answer in answers}
    assert {"heddle"} == {answer.headers["Server"] for answer in answers}
