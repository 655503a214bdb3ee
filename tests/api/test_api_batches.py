"""Batches over HTTP: submission, idempotency, listing, cancelling."""

from __future__ import annotations

import httpx
from rest_harness import body_of, make_batch, serving
from scripted_service import ScriptedService


async def test_submit_answers_201_with_the_status_and_its_place() -> None:
    """A new batch is answered with 201, its status, and a Location."""
    async with serving(ScriptedService()) as http:
        response = await http.post("/v1/batches", json=make_batch(prompts=2, samples_per_prompt=3))

        assert response.status_code == 201
        assert response.headers["Location"] == "/v1/batches/b0"
        assert body_of(response, "batch_id", "state", "total", "finished") == ("b0", "running", 6, 0)


async def test_the_same_batch_twice_is_one_batch() -> None:
    """A second batch of the same id is answered with 200 and starts nothing."""
    service = ScriptedService()
    async with serving(service) as http:
        first = await http.post("/v1/batches", json=make_batch(batch_id="again"))
        second = await http.post("/v1/batches", json=make_batch(batch_id="again"))

    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json() == second.json()
    assert service.submissions == 1


async def test_the_same_id_with_another_content_is_a_conflict() -> None:
    """An id that is taken by another content is refused with 409."""
    service = ScriptedService()
    async with serving(service) as http:
        await http.post("/v1/batches", json=make_batch(batch_id="taken"))
        response = await http.post("/v1/batches", json=make_batch(batch_id="taken", prompts=3))

    assert response.status_code == 409
    assert response.json()["error"]["code"] == "conflict"
    assert service.submissions == 1


async def test_a_batch_runs_from_submission_to_its_end() -> None:
    """The status counts what finishes and says when it is over."""
    service = ScriptedService()
    async with serving(service) as http:
        await http.post("/v1/batches", json=make_batch(samples_per_prompt=2))
        service.finish("b0")
        half = await http.get("/v1/batches/b0")
        service.finish("b0")
        whole = await http.get("/v1/batches/b0")
        listed = await http.get("/v1/batches")

    assert body_of(half, "state", "finished", "by_status") == ("running", 1, {"completed": 1})
    assert body_of(whole, "state", "finished") == ("finished", 2)
    assert [whole.json()] == listed.json()["batches"]


async def test_delete_cancels_what_still_runs() -> None:
    """Cancelling keeps what finished and aborts the rest."""
    service = ScriptedService()
    async with serving(service) as http:
        await http.post("/v1/batches", json=make_batch(samples_per_prompt=3))
        service.finish("b0")
        response = await http.delete("/v1/batches/b0")

    assert response.status_code == 200
    assert body_of(response, "state", "by_status") == ("cancelled", {"completed": 1, "aborted": 2})


async def test_a_trajectory_is_pending_and_then_a_record() -> None:
    """The single trajectory is served as stored, and says so while it is open."""
    service = ScriptedService()
    async with serving(service) as http:
        await http.post("/v1/batches", json=make_batch())
        pending = await http.get("/v1/trajectories/b0-g0-t0")
        why = await http.get("/v1/trajectories/b0-g0-t0/explain")
        service.finish("b0")
        record = await http.get("/v1/trajectories/b0-g0-t0")

    assert pending.json() == {"trajectory_id": "b0-g0-t0", "status": "pending"}
    assert body_of(why, "phase", "queue_position") == ("queued", 0)
    assert service.known["b0"].records[0] == record.content


async def test_workers_can_be_listed_added_and_drained() -> None:
    """The pool grows by POST and shrinks by DELETE."""
    async with serving(ScriptedService()) as http:
        added = await http.post("/v1/workers", json={"tp_degree": 2})
        drained = await http.delete("/v1/workers/w0")
        listed = await http.get("/v1/workers")

    assert (added.status_code, *body_of(added, "worker_id", "tp_degree")) == (201, "w1", 2)
    assert drained.json()["phase"] == "draining"
    assert [worker["worker_id"] for worker in listed.json()["workers"]] == ["w0", "w1"]


async def test_dispatch_pauses_and_resumes() -> None:
    """Pause and resume reach the service and tell the new state."""
    service = ScriptedService()
    async with serving(service) as http:
        paused = await http.post("/v1/pause")
        was_paused = service.paused
        resumed = await http.post("/v1/resume", json={})

    assert paused.json() == {"dispatch": "paused"}
    assert was_paused
    assert resumed.json() == {"dispatch": "running"}
    assert not service.paused


async def test_health_is_public_and_readiness_follows_the_service() -> None:
    """Health is always 200; readiness is 503 until a worker can generate."""
    service = ScriptedService()
    service.is_ready = False
    async with serving(service, token="secret") as http:
        alive = await http.get("/healthz")
        early = await http.get("/readyz")
        service.is_ready = True
        ready = await http.get("/readyz")

    assert [r.status_code for r in (alive, early, ready)] == [200, 503, 200]
    assert early.json()["error"]["code"] == "not_ready"


async def test_metrics_count_requests_by_template() -> None:
    """The route label is the template, so that ids do not become labels."""
    async with serving(ScriptedService()) as http:
        await http.get("/v1/batches/nothing-1")
        await http.get("/v1/batches/nothing-2")
        text = (await http.get("/metrics")).text

    line = 'heddle_http_requests_total{code="404",method="GET",route="/v1/batches/{batch_id}"} 2.0'
    assert line in text
    assert "nothing-1" not in text


async def test_large_answers_are_streamed_whole() -> None:
    """A record of megabytes arrives byte for byte."""
    service = ScriptedService()
    async with serving(service) as http:
        await http.post("/v1/batches", json=make_batch(samples_per_prompt=2))
        service.finish("b0", reward_info={"blob": "x" * 3_000_000})
        record = await http.get("/v1/trajectories/b0-g0-t0")
        page: httpx.Response = await http.get("/v1/batches/b0/trajectories")

    assert service.known["b0"].records[0] == record.content
    assert len(page.json()["trajectories"][0]["reward_info"]["blob"]) == 3_000_000
