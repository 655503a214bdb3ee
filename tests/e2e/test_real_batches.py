"""One server, two real engines, real tools: batches as their submitter sees them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import orjson
import psutil
import pytest
from record_checks import RecordJudge, assert_each_once, by_environment
from server_process import (
    MAX_BODY_BYTES,
    Server,
    batch_of,
    eventually,
    gated_prompt,
    is_gone,
    prompts,
    replays_equal,
    serving,
)

from heddle.client import Client
from heddle.control.events import BatchSubmitted
from heddle.engines.embedded.model import ensure_model
from heddle.environments.registry import build_registry
from heddle.eventlog import read_event_log
from heddle.records import Trajectory
from heddle.text.tokenizer import load_tokenizer
from heddle.types import Json, StopReason

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

Figures: TypeAlias = Callable[[str, object], None]
"""Takes what was measured into the report of the tests (``--junitxml``)."""

ENVIRONMENTS = ("math", "code", "search")
SAMPLES = 2
FREE_WITHIN_S = 8.0
"""From a cancellation to free slots and sandboxes: 2 s, and patience with a machine that is busy."""
IDLE_WINDOW_S = 0.25
IDLE_CPU_S = 0.03
"""Processor time of two engines that do nothing for ``IDLE_WINDOW_S``; one that generates takes far more."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all tests of this file; each uses batches of its own."""
    with serving(tmp_path_factory.mktemp("server") / "data", f"server.max_body_bytes={MAX_BODY_BYTES}") as up:
        yield up


@pytest.fixture(scope="module")
def judge() -> RecordJudge:
    """With the tokenizer of the model itself, loaded apart from the server."""
    tokenizer = load_tokenizer(ensure_model("smollm2-135m-instruct"))
    return RecordJudge(tokenizer, build_registry({"gated": "gated_environment:GatedEnvironment"}))


# ------------------------------------------------------------------------------- what is refused


def math_prompt(question: Json = "What is 6 times 7?") -> Json:
    return {"environment": "math", "task": {"question": question, "answer": 42}}


def body(**fields: Json) -> bytes:
    """A good batch but for ``fields``."""
    return orjson.dumps({"prompts": [math_prompt()], **fields})


REFUSED: dict[str, tuple[bytes, int, str]] = {
    "unknown field": (body(colour="red"), 400, "colour"),
    "unknown field inside": (body(limits={"max_stepz": 3}), 400, "limits.max_stepz"),
    "wrong type": (body(prompts="many"), 400, "prompts"),
    "wrong type inside": (body(sampling={"temperature": "hot"}), 400, "sampling.temperature"),
    "n is 0": (body(samples_per_prompt=0), 400, "samples_per_prompt"),
    "body over the limit": (body() + b" " * MAX_BODY_BYTES, 413, "body"),
    "bad JSON": (b'{"prompts": [', 400, "body"),
    "unknown environment": (
        body(prompts=[math_prompt(), {"environment": "chess", "task": {}}]),
        400,
        "prompts[1].environment",
    ),
    "task of another environment": (body(prompts=[math_prompt(3)]), 400, "prompts[0].task.question"),
    "prompt longer than the context": (
        body(prompts=[math_prompt(), math_prompt("How many? " * 2000)]),
        400,
        "prompts[1].task",
    ),
}


@pytest.mark.parametrize(("content", "status", "path"), REFUSED.values(), ids=REFUSED)
def test_a_bad_batch_is_refused_by_the_path_of_its_fault(
    server: Server, content: bytes, status: int, path: str
) -> None:
    """And nothing of it is accepted: neither a batch nor a generation."""
    before = server.batch_ids()
    headers = {"Content-Type": "application/json"}
    response = server.http.post("/v1/batches", content=content, headers=headers)
    assert (response.status_code, response.json()["error"]["path"]) == (status, path)
    assert server.batch_ids() == before
    assert [worker["resident"] for worker in server.workers()] == [0, 0]


def test_the_same_batch_twice_is_one_batch(server: Server) -> None:
    """201, then 200 and the same batch; with another content 409."""
    batch = batch_of("twice", prompts("guess"), max_steps=1, max_tokens_per_step=16)
    answers = [server.submit(batch) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 200]
    assert {answer.json()["batch_id"] for answer in answers} == {"twice"}
    assert server.submit({**batch, "samples_per_prompt": 3}).status_code == 409
    assert_each_once(server.collect("twice"), "twice", prompts=1, samples=1)
    assert server.submit(batch).status_code == 200
    assert (server.batch("twice")["total"], server.batch_ids().count("twice")) == (1, 1)


# ------------------------------------------------------------------------------ two whole batches


@dataclass(frozen=True, slots=True)
class Arrival:
    """A trajectory that reached us, and whether its batch was still running then."""

    trajectory_id: str
    others_ran: bool


@dataclass(frozen=True, slots=True)
class Watched:
    """A batch that was followed by long polls and by server-sent events at the same time."""

    records: list[Trajectory]
    polled: list[Arrival]
    events: list[Arrival]


async def follow(server: Server, batch_id: str, total: int) -> Watched:
    """Poll and listen until every trajectory has come both ways."""
    records: list[Trajectory] = []
    polled: list[Arrival] = []
    events: list[Arrival] = []
    async with Client(server.url) as client:

        async def others_run() -> bool:
            return (await client.batch(batch_id)).finished < total

        async def poll() -> None:
            async for record in client.trajectories(batch_id):
                records.append(record)
                polled.append(Arrival(record.trajectory_id, await others_run()))

        async def listen() -> None:
            async for event in client.events(after=0):
                if event.name == "trajectory.finished" and event.data["batch_id"] == batch_id:
                    events.append(Arrival(str(event.data["trajectory_id"]), await others_run()))
                if len(events) == total:
                    return

        async with asyncio.TaskGroup() as group:
            group.create_task(poll())
            group.create_task(listen())
    return Watched(records, polled, events)


def follow_batch(server: Server, batch: dict[str, Json], figures: Figures) -> Watched:
    """Submit a batch and follow it to its end."""
    response = server.submit(batch)
    assert response.status_code == 201, response.text
    batch_id, total = str(batch["batch_id"]), response.json()["total"]
    watched = asyncio.run(follow(server, batch_id, total))
    status = server.batch(batch_id)
    figures(f"makespan_of_{batch_id}_s", status["finished_at"] - status["created_at"])
    return watched


@pytest.fixture(scope="module")
def mixed(server: Server, record_testsuite_property: Figures) -> Watched:
    """Two prompts of each of the three environments, two samples each, every step a constrained call."""
    batch = batch_of(
        "mixed", prompts(*ENVIRONMENTS, each=2), samples=SAMPLES, max_steps=2, max_tokens_per_step=40
    )
    return follow_batch(server, batch, record_testsuite_property)


@pytest.fixture(scope="module")
def free(server: Server, record_testsuite_property: Figures) -> Watched:
    """The same environments, the model saying what it likes."""
    batch = batch_of(
        "free",
        prompts(*ENVIRONMENTS),
        samples=SAMPLES,
        constrained=False,
        max_steps=2,
        max_tokens_per_step=40,
    )
    return follow_batch(server, batch, record_testsuite_property)


def test_a_mixed_batch_finishes_each_trajectory_once(mixed: Watched) -> None:
    """All of them, of all environments, and none for a fault of the infrastructure."""
    assert_each_once(mixed.records, "mixed", prompts=6, samples=SAMPLES)
    assert by_environment(mixed.records) == dict.fromkeys(sorted(ENVIRONMENTS), 4)
    assert [record.failure for record in mixed.records] == [None] * 12
    assert {step.constrained for record in mixed.records for step in record.steps} == {True}


def test_trajectories_arrive_while_others_still_run(mixed: Watched) -> None:
    """By long poll and by server-sent event, each once."""
    for arrivals in (mixed.polled, mixed.events):
        assert len({arrival.trajectory_id for arrival in arrivals}) == len(arrivals) == 12
        assert any(arrival.others_ran for arrival in arrivals)
    assert {arrival.trajectory_id for arrival in mixed.polled} == {
        arrival.trajectory_id for arrival in mixed.events
    }


def test_more_than_a_third_call_a_real_tool(mixed: Watched) -> None:
    """A call that reached a tool, whatever came of it."""
    called = [
        record
        for record in mixed.records
        if any(call.outcome != "invalid" for step in record.steps for call in step.tool_calls)
    ]
    assert 3 * len(called) > len(mixed.records)


def test_a_free_model_is_not_constrained(free: Watched) -> None:
    """No step says that it was, and none was given a prefix."""
    assert_each_once(free.records, "free", prompts=3, samples=SAMPLES)
    steps = [step for record in free.records for step in record.steps]
    assert {(step.constrained, step.forced_tokens) for step in steps} == {(False, 0)}


def test_every_record_holds_together(mixed: Watched, free: Watched, judge: RecordJudge) -> None:
    """Token arrays, prefixes, transcript, times and gates of both batches."""
    for record in (*mixed.records, *free.records):
        judge.check(record)


# ----------------------------------------------------------------------------------------- cancel


def seconds_until_idle(engines: list[psutil.Process], within_s: float) -> float:
    """Until these processes take no processor time: what they say of themselves is not asked."""
    began_at = time.monotonic()
    while True:
        window_at, before = time.monotonic(), cpu_seconds(engines)
        time.sleep(IDLE_WINDOW_S)
        if cpu_seconds(engines) - before <= IDLE_CPU_S:
            return window_at - began_at
        assert window_at - began_at < within_s, "the engines still work"


def cpu_seconds(processes: list[psutil.Process]) -> float:
    """Processor time that they have taken so far."""
    return sum(times.user + times.system for times in (process.cpu_times() for process in processes))


def test_cancel_frees_slots_and_sandboxes(
    server: Server, judge: RecordJudge, tmp_path: Path, record_testsuite_property: Figures
) -> None:
    """In mid-flight: engines stop working, programs are gone, every trajectory leaves a record."""
    batch = batch_of(
        "cancelled",
        [gated_prompt(tmp_path / "gate"), *prompts("math", "code", each=4)],
        samples=2,
        max_steps=8,
        max_tokens_per_step=80,
    )
    assert server.submit(batch).status_code == 201
    eventually(lambda: bool(server.running() and server.sandboxes()), "generations and programs")
    engines = server.engines()
    programs = [process for process in server.descendants() if process not in engines]

    began_at = time.monotonic()
    assert server.http.delete("/v1/batches/cancelled").status_code == 200
    eventually(lambda: server.running() == 0, "free slots", FREE_WITHIN_S)
    record_testsuite_property("cancel_to_free_slots_s", time.monotonic() - began_at)
    eventually(lambda: all(map(is_gone, programs)), "the end of the programs", FREE_WITHIN_S)
    record_testsuite_property("cancel_to_free_sandboxes_s", time.monotonic() - began_at)
    idle_s = time.monotonic() - began_at + seconds_until_idle(engines, FREE_WITHIN_S)
    record_testsuite_property("cancel_to_idle_engines_s", idle_s)

    records = server.collect("cancelled")
    assert server.batch("cancelled")["state"] == "cancelled"
    assert server.sandboxes() == []
    assert_each_once(records, "cancelled", prompts=9, samples=2)
    assert StopReason.CANCELLED in {record.stop_reason for record in records}
    for record in records:
        judge.check(record)


# ------------------------------------------------------------------------- an engine that is killed


def kill_while_it_generates(server: Server) -> int:
    """``kill -9`` of an engine that certainly owes a generation; returns its process id."""
    while True:
        busy = [worker for worker in server.workers() if worker["running"] and worker["pid"]]
        for worker in busy:
            engine = psutil.Process(worker["pid"])
            engine.suspend()  # now it cannot end what it has begun
            time.sleep(0.2)
            if any(now["pid"] == engine.pid and now["running"] for now in server.workers()):
                engine.kill()
                return engine.pid
            with suppress(psutil.NoSuchProcess):
                engine.resume()
        time.sleep(0.02)


def test_a_killed_engine_loses_no_trajectory(
    server: Server, judge: RecordJudge, record_testsuite_property: Figures
) -> None:
    """``kill -9`` in the middle of a batch: all finish, none twice, and the worker comes back."""
    restarts = sum(worker["restarts"] for worker in server.workers())
    batch = batch_of("bereft", prompts("guess", each=5), samples=2, max_tokens_per_step=24)
    assert server.submit(batch).status_code == 201
    killed = kill_while_it_generates(server)
    assert server.batch("bereft")["finished"] < 10
    records = server.collect("bereft")
    status = server.batch("bereft")
    record_testsuite_property("makespan_with_a_killed_engine_s", status["finished_at"] - status["created_at"])

    assert_each_once(records, "bereft", prompts=5, samples=2)
    assert [record.failure for record in records] == [None] * 10
    assert any(step.segments > 1 for record in records for step in record.steps)
    for record in records:
        judge.check(record)
    eventually(lambda: {worker["phase"] for worker in server.workers()} == {"ready"}, "the worker's return")
    workers = server.workers()
    assert sum(worker["restarts"] for worker in workers) == restarts + 1
    assert killed not in {worker["pid"] for worker in workers}


def test_the_event_log_of_all_this_replays_equal(server: Server, mixed: Watched) -> None:
    """The control plane heard of the batches that exist and of no other, and would decide the same."""
    [path] = server.event_logs()
    heard = [e.event.batch_id for e in read_event_log(path).entries if isinstance(e.event, BatchSubmitted)]
    assert sorted(heard) == sorted(server.batch_ids())
    assert replays_equal(path)
