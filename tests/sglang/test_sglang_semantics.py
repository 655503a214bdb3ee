"""What the adapter relies on, asked of real SGLang and of the mock over plain HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from sglang_servers import SLOTS, Server
from sglang_steps import DEADLINE_S, idle, prompt, until

from heddle.engines.sglang.protocol import StreamEvent
from heddle.engines.sglang.stream import read_events

pytestmark = pytest.mark.timeout(900)  # the first test installs and starts a real server


@pytest_asyncio.fixture
async def http(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the shared server, whose prefix cache is empty."""
    async with httpx.AsyncClient(base_url=server.url, timeout=DEADLINE_S, trust_env=False) as client:
        assert (await client.post("/flush_cache")).status_code == 200
        yield client
        await client.post("/abort_request", json={"abort_all": True})
        await idle(server.url)


def body(rid: str, tokens: int, *, seed: int = 0, **changes: Any) -> dict[str, Any]:
    """A greedy request of exactly so many tokens, ``rid`` repeated to a full length."""
    sampling = {"max_new_tokens": tokens, "temperature": 0.0, "ignore_eos": True}
    return {
        "rid": rid,
        "input_ids": prompt(10, seed),
        "sampling_params": sampling,
        "return_logprob": True,
        **changes,
    }


async def post(http: httpx.AsyncClient, request: dict[str, Any]) -> dict[str, Any]:
    """The reply to a request that does not stream."""
    response = await http.post("/generate", json=request)
    assert response.status_code == 200, response.text
    reply: dict[str, Any] = response.json()
    return reply


async def stream(http: httpx.AsyncClient, request: dict[str, Any]) -> list[StreamEvent]:
    """All events of a request that streams."""
    async with http.stream("POST", "/generate", json={**request, "stream": True}) as response:
        assert response.status_code == 200
        return [event async for event in read_events(response.aiter_raw())]


def in_background(http: httpx.AsyncClient, request: dict[str, Any]) -> asyncio.Task[dict[str, Any]]:
    """A request under way."""
    return asyncio.create_task(post(http, request))


async def fill_slots(http: httpx.AsyncClient, server: Server) -> list[asyncio.Task[dict[str, Any]]]:
    """Long requests in all slots, called ``f0`` and so on."""
    tasks = [in_background(http, body(f"f{slot}", 3000, seed=slot)) for slot in range(SLOTS)]
    await until(lambda load: load["num_running_reqs"] == SLOTS, server.url)
    return tasks


async def test_bodies_are_strict_about_sampling_and_deaf_to_the_rest(http: httpx.AsyncClient) -> None:
    """An unknown parameter is refused, an unknown field is not; without a limit it is 128 tokens."""
    request = body("a", 3)
    request["sampling_params"]["max_tokens"] = 3
    refused = await http.post("/generate", json=request)
    assert refused.status_code == 400
    assert "max_tokens" in refused.json()["error"]
    request = body("a", 3, nonsense=1)
    del request["sampling_params"]["max_new_tokens"]
    reply = await post(http, request)
    assert reply["meta_info"]["completion_tokens"] == len(reply["output_ids"]) == 128


async def test_a_live_id_is_taken(http: httpx.AsyncClient, server: Server) -> None:
    """An error by status, or by event in a stream; the first request goes on."""
    tasks = await fill_slots(http, server)
    refused = await http.post("/generate", json=body("f0", 3))
    assert refused.status_code == 400
    assert "Duplicate request ID" in refused.json()["error"]["message"]
    [event] = await stream(http, body("f1", 3))
    assert event.error is not None
    assert event.error.code == 400
    assert not any(task.done() for task in tasks)
    await http.post("/abort_request", json={"abort_all": True})
    replies = await asyncio.gather(*tasks)
    assert [reply["meta_info"]["finish_reason"]["type"] for reply in replies] == ["abort"] * SLOTS


async def test_an_abort_takes_every_id_that_begins_alike(http: httpx.AsyncClient, server: Server) -> None:
    """Of those that live, the named one must be among them; unknown and empty ids end nothing."""
    task = in_background(http, body("t1", 3000))
    longer = in_background(http, body("t10", 3000, seed=1))
    await until(lambda load: load["num_running_reqs"] == 2, server.url)
    for unknown in ("t", "nobody", ""):
        assert (await http.post("/abort_request", json={"rid": unknown})).status_code == 200
    assert not task.done()
    await http.post("/abort_request", json={"rid": "t1"})
    for reply in await asyncio.gather(task, longer):
        assert reply["meta_info"]["finish_reason"]["type"] == "abort"
        assert 0 < len(reply["output_ids"]) < 3000


async def test_an_id_is_not_free_yet_when_its_stream_has_ended(http: httpx.AsyncClient) -> None:
    """Two seconds later the server aborts whatever has it then."""
    assert (await stream(http, body("again", 3)))[-1].meta_info.finish_reason is not None
    events = await stream(http, body("again", 8000))
    finish = events[-1].meta_info.finish_reason
    assert finish is not None
    assert finish.type == "abort"


async def test_an_aborted_queued_request_says_little(http: httpx.AsyncClient, server: Server) -> None:
    """No ids, and neither how long its prompt was nor what of it was cached."""
    tasks = await fill_slots(http, server)
    queued = in_background(http, body("q", 3, seed=7))
    await until(lambda load: load["num_waiting_reqs"] == 1, server.url)
    await http.post("/abort_request", json={"rid": "q"})
    reply = await queued
    assert reply["output_ids"] == []
    meta = reply["meta_info"]
    assert meta["finish_reason"] == {"type": "abort", "message": "Abort in waiting queue"}
    assert meta["completion_tokens"] == 0
    assert not {"prompt_tokens", "cached_tokens"} & set(meta)
    await http.post("/abort_request", json={"abort_all": True})
    await asyncio.gather(*tasks)


async def test_a_preempted_request_that_does_not_stream_is_known_by_fifties(
    http: httpx.AsyncClient, server: Server
) -> None:
    """Aborted while it waits, it returns what the scheduler had shown; a stream returns all."""
    silent = in_background(http, body("silent", 3000))
    shown = asyncio.create_task(stream(http, body("shown", 3000, seed=1)))
    await until(lambda load: load["num_running_reqs"] == 2, server.url)
    await until(lambda load: load["num_used_tokens"] > 2 * 80, server.url)
    urgent = [in_background(http, body(f"urgent{i}", 3000, seed=2 + i, priority=9)) for i in range(SLOTS)]
    await until(lambda load: load["num_waiting_reqs"] == 2, server.url)
    await http.post("/abort_request", json={"rid": "silent"})
    await http.post("/abort_request", json={"rid": "shown"})
    reply = await silent
    assert len(reply["output_ids"]) % 50 == 0
    assert len(reply["output_ids"]) == len(reply["meta_info"]["output_token_logprobs"]) > 0
    *_, before_last, last = await shown
    assert last.meta_info.completion_tokens == before_last.meta_info.completion_tokens
    assert last.output_ids == (before_last.output_ids or [])[-1:]
    await http.post("/abort_request", json={"abort_all": True})
    await asyncio.gather(*urgent)


async def test_prefixes_are_parted_by_extra_key(http: httpx.AsyncClient) -> None:
    """What one key computed, another does not find."""
    for extra_key, cached in (("wv:1", 0), ("wv:2", 0), ("wv:1", 99)):
        asked = body(f"k{extra_key}{cached}", 1, extra_key=extra_key, input_ids=prompt(100, 3))
        reply = await post(http, asked)
        assert reply["meta_info"]["cached_tokens"] == cached


async def test_a_paused_server_is_not_ready(http: httpx.AsyncClient) -> None:
    """Requests are held until it goes on; ``/health`` takes a second, ``/ready`` does not."""
    began = time.monotonic()
    assert (await http.get("/health")).status_code == 200
    assert time.monotonic() - began >= 0.95
    assert (await http.get("/ready")).status_code == 200
    await http.post("/pause_generation", json={"mode": "retract"})
    assert (await http.get("/ready")).status_code == 503
    held = in_background(http, body("held", 2))
    assert (await http.get("/model_info")).status_code == 200
    assert not held.done()
    await http.post("/continue_generation", json={"torch_empty_cache": False})
    assert len((await held)["output_ids"]) == 2


async def test_only_slots_can_be_set_while_a_server_runs(http: httpx.AsyncClient) -> None:
    """One boolean for each data-parallel rank."""
    for change, accepted in (
        ({"pp_max_micro_batch_size": 1}, True),
        ({"pp_max_micro_batch_size": SLOTS + 1}, False),
        ({"max_running_requests": 1}, False),
        ({"pp_max_micro_batch_size": SLOTS}, True),
    ):
        answer = await http.post("/set_internal_state", json={"server_args": change})
        assert answer.json() == [accepted]


async def test_weights_from_a_trainer_come_between_a_beginning_and_an_end(http: httpx.AsyncClient) -> None:
    """Without the brackets they are refused, and so are brackets that do not fit."""

    async def status(path: str, request: dict[str, Any]) -> int:
        return (await http.post(path, json=request)).status_code

    update = {"names": [], "dtypes": [], "shapes": [], "flush_cache": False}
    assert await status("/update_weights_from_distributed", update) == 400
    assert await status("/end_weight_update", {}) == 400
    assert await status("/begin_weight_update", {}) == 200
    assert await status("/begin_weight_update", {}) == 400
    assert await status("/end_weight_update", {}) == 200


async def test_an_update_that_cannot_flush_is_called_failed(http: httpx.AsyncClient, server: Server) -> None:
    """Although the new weights serve: so a flush is better asked for by itself."""
    task = in_background(http, body("running", 3000))
    await until(lambda load: load["num_running_reqs"] == 1, server.url)
    await http.post("/pause_generation", json={"mode": "in_place"})
    update = {"model_path": str(server.kind.model), "flush_cache": True}
    failed = await http.post("/update_weights_from_disk", json=update)
    assert failed.status_code == 400
    assert failed.json()["message"].startswith("Weights were updated, but the cache was not flushed")
    await http.post("/continue_generation", json={"torch_empty_cache": False})
    await http.post("/abort_request", json={"abort_all": True})
    await task


async def test_metrics_have_the_names_that_dashboards_use(http: httpx.AsyncClient) -> None:
    """Generated tokens are counted exactly."""

    async def generated() -> float:
        lines = (await http.get("/metrics")).text.splitlines()
        found = [line for line in lines if line.startswith("sglang:generation_tokens_total")]
        return sum(float(line.rpartition(" ")[2]) for line in found)

    before = await generated()
    await post(http, body("counted", 17))
    async with asyncio.timeout(DEADLINE_S):
        while await generated() < before + 17:
            await asyncio.sleep(0.05)
    assert await generated() == before + 17
    text = (await http.get("/metrics")).text
    for name in ("num_running_reqs", "num_queue_reqs", "num_used_tokens", "token_usage", "gen_throughput"):
        assert f"\nsglang:{name}{{" in text
    for name in ("prompt_tokens_total", "cached_tokens_total", "num_aborted_requests_total"):
        assert f"\nsglang:{name}{{" in text
