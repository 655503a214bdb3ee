"""Real engine processes on the real model."""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import psutil
import pytest
import pytest_asyncio
from engine_builders import GREEDY, ignore, make_request

from heddle.agent.ports import TokenChunk
from heddle.engines.embedded.launcher import EmbeddedLauncher, EmbeddedWorker
from heddle.engines.embedded.model import ensure_model
from heddle.engines.supervisor import RestartPacing, RunningWorker, SupervisedWorker
from heddle.errors import ConfigError, EngineError, EngineRejected, EngineUnavailable
from heddle.types import FinishReason, Json, WorkerId, WorkerSpec

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

COUNT_TO_THREE = [1, 4093, 198, 9825, 288, 1296, 30, 2, 198, 1, 520, 9531, 198]
"""A user's turn "Count to three." and the opening of the assistant's."""
REPEAT_EMOJI = [*COUNT_TO_THREE, *[10813, 232, 227, 10813, 234, 227] * 3]
"""An assistant's turn that has begun to repeat two emoji of three tokens each."""
END_OF_TURN = 2
SLOTS = 2


@pytest.fixture(scope="module")
def launcher() -> EmbeddedLauncher:
    """On the small model, which is downloaded where the cache lacks it."""
    model = ensure_model("smollm2-135m-instruct")
    return EmbeddedLauncher(model, context_tokens=1024, ready_timeout_s=100)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(
    launcher: EmbeddedLauncher, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[EmbeddedWorker]:
    """One server for all tests that leave it unharmed."""
    log_path = tmp_path_factory.mktemp("logs") / "shared.log"
    worker = await launcher.launch(spec("shared"), log_path)
    yield worker
    await worker.stop()


def spec(name: str) -> WorkerSpec:
    """A worker of one thread."""
    return WorkerSpec(WorkerId(name), tp_degree=1, slots=SLOTS)


def is_gone(pid: int) -> bool:
    """No such process, or one that only waits to be reaped."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def eventually(condition: Callable[[], bool], within_s: float = 10.0) -> float:
    """Wait until the condition holds; returns how long that took."""
    began_at = time.monotonic()
    while not condition():
        assert time.monotonic() - began_at < within_s
        await asyncio.sleep(0.02)
    return time.monotonic() - began_at


async def start_generation(
    worker: EmbeddedWorker, request_id: str, prompt_ids: list[int]
) -> tuple[asyncio.Task[object], list[int]]:
    """A long generation that has given a few tokens, and the list into which they stream."""
    seen: list[int] = []
    running = asyncio.Event()

    def note(chunk: TokenChunk) -> None:
        seen.extend(chunk.token_ids)
        if len(seen) >= 5:
            running.set()

    request = make_request(request_id, prompt_ids=prompt_ids, max_new_tokens=500)
    task: asyncio.Task[object] = asyncio.create_task(worker.engine.generate(request, note))
    await asyncio.wait_for(running.wait(), timeout=60)
    return task, seen


async def test_a_greedy_generation_is_complete_and_repeatable(worker: EmbeddedWorker) -> None:
    """It ends with the end of turn; each id has a logprob; what streamed is what is returned."""
    chunks: list[TokenChunk] = []
    request = make_request(prompt_ids=COUNT_TO_THREE, max_new_tokens=64, sampling=GREEDY)
    generation = await worker.engine.generate(request, chunks.append)
    again = await worker.engine.generate(request, ignore)
    assert generation.finish_reason is FinishReason.STOP
    assert generation.token_ids[-1] == END_OF_TURN
    assert len(generation.logprobs) == len(generation.token_ids)
    assert all(math.isfinite(logprob) and logprob <= 0.0 for logprob in generation.logprobs)
    assert [i for chunk in chunks for i in chunk.token_ids] == generation.token_ids
    assert again.token_ids == generation.token_ids
    assert generation.prefill_s > 0.0
    assert generation.decode_s > 0.0


async def test_the_length_limit_is_exact(worker: EmbeddedWorker) -> None:
    """As many tokens as were asked for, one included."""
    for limit in (1, 7):
        request = make_request(prompt_ids=COUNT_TO_THREE, max_new_tokens=limit)
        generation = await worker.engine.generate(request, ignore)
        assert (len(generation.token_ids), generation.finish_reason) == (limit, FinishReason.LENGTH)


async def test_characters_of_several_tokens_lose_none(worker: EmbeddedWorker) -> None:
    """The server would withhold the first two tokens of each emoji; all forty arrive."""
    request = make_request(prompt_ids=REPEAT_EMOJI, max_new_tokens=40, sampling=GREEDY)
    generation = await worker.engine.generate(request, ignore)
    assert (len(generation.token_ids), len(generation.logprobs)) == (40, 40)
    assert 10813 in generation.token_ids


async def test_logprobs_are_those_of_the_distribution_sampled_from(worker: EmbeddedWorker) -> None:
    """At the defaults the sampling probability of every token is the model's own."""
    body = {
        "prompt": COUNT_TO_THREE,
        "n_predict": 12,
        "n_probs": 1,
        "samplers": ["temperature"],
        "temperature": 1.0,
        "seed": 3,
    }
    engine_headers = worker.engine.headers
    async with httpx.AsyncClient(base_url=worker.url, headers=engine_headers, timeout=60) as client:
        raw = (await client.post("/completion", json=body)).json()["completion_probabilities"]
        post = (await client.post("/completion", json={**body, "post_sampling_probs": True})).json()
    sampled = [math.log(entry["prob"]) for entry in post["completion_probabilities"]]
    assert sampled == pytest.approx([entry["logprob"] for entry in raw], abs=0.02)


async def test_a_continuation_reuses_its_prefix(worker: EmbeddedWorker) -> None:
    """All but the newest token of the past is cached, also after a warm-up."""
    first = await worker.engine.generate(make_request(prompt_ids=COUNT_TO_THREE), ignore)
    longer = [*COUNT_TO_THREE, *first.token_ids, 198, 1, 4093, 198]
    second = await worker.engine.generate(make_request(prompt_ids=longer), ignore)
    assert second.cached_tokens >= len(COUNT_TO_THREE) + len(first.token_ids) - 1
    warmed = [1, 4093, 198, *range(1000, 1030)]
    assert (await worker.engine.warm_prefix(warmed)).tokens < len(warmed)
    assert (await worker.engine.warm_prefix(warmed)).tokens >= len(warmed) - 1


async def test_constrained_output_is_an_object_of_the_schema(worker: EmbeddedWorker) -> None:
    """Unlikely as it is after such a prompt, every sample parses, and ends with the end of turn."""
    schema: dict[str, Json] = {
        "type": "object",
        "properties": {"value": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["value"],
        "additionalProperties": False,
    }
    request = make_request(prompt_ids=COUNT_TO_THREE, max_new_tokens=40, json_schema=schema)
    generation = await worker.engine.generate(request, ignore)
    async with httpx.AsyncClient(base_url=worker.url, headers=worker.engine.headers) as client:
        answer = await client.post("/detokenize", json={"tokens": list(generation.token_ids[:-1])})
    value = json.loads(answer.json()["content"])
    assert list(value) == ["value"]
    assert 0 <= value["value"] <= 99
    assert generation.token_ids[-1] == END_OF_TURN


async def test_an_abort_frees_the_slot_and_keeps_the_prefix(worker: EmbeddedWorker) -> None:
    """The partial output is returned, and resuming computes hardly anything again."""
    prompt_ids = random.Random(1).sample(range(100, 40_000), 60)
    task, seen = await start_generation(worker, "aborted", prompt_ids)
    began_at = time.monotonic()
    await worker.engine.abort("aborted")
    took_s = time.monotonic() - began_at
    assert not any(slot.is_processing for slot in await worker.engine.slots())
    assert took_s < 1.0
    await task
    resumed = await worker.engine.generate(make_request(prompt_ids=[*prompt_ids, *seen]), ignore)
    assert resumed.cached_tokens >= len(prompt_ids) + len(seen) - 2


async def test_a_cancelled_generation_frees_the_slot(worker: EmbeddedWorker) -> None:
    """When the cancellation comes out the slot is free, during prefill too."""
    task, _ = await start_generation(worker, "cancelled", COUNT_TO_THREE)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not any(slot.is_processing for slot in await worker.engine.slots())
    long_prompt = random.Random(2).sample(range(100, 40_000), 1000)
    began_at = time.monotonic()
    prefill = asyncio.create_task(worker.engine.generate(make_request(prompt_ids=long_prompt), ignore))
    await asyncio.sleep(0.2)
    prefill.cancel()
    with pytest.raises(asyncio.CancelledError):
        await prefill
    assert not any(slot.is_processing for slot in await worker.engine.slots())
    assert time.monotonic() - began_at < 10.0  # the whole prefill takes longer on one thread


@pytest.mark.parametrize("prompt_ids", [[], [10**6], [5] * 1025])
async def test_an_impossible_prompt_is_rejected(worker: EmbeddedWorker, prompt_ids: list[int]) -> None:
    """Empty, beyond the vocabulary, beyond the context."""
    with pytest.raises(EngineRejected):
        await worker.engine.generate(make_request(prompt_ids=prompt_ids), ignore)


async def test_load_counts_slots_and_tokens(worker: EmbeddedWorker) -> None:
    """An idle server has nothing running and room for every slot's context."""
    load = await worker.engine.load()
    assert (load.running, load.waiting) == (0, 0)
    assert load.kv_capacity_tokens == worker.kv_capacity_tokens == SLOTS * 1024
    # 30 layers, 3 heads of 64 numbers for keys and values each, 2 bytes a number; 1 GiB of them.
    assert worker.prefix_capacity_tokens == SLOTS * 1024 + 2**30 // (30 * 3 * 2 * 64 * 2)


async def test_strangers_get_no_answer(worker: EmbeddedWorker) -> None:
    """Without the key that the launcher drew, the server refuses: browsers reach loopback too."""
    async with httpx.AsyncClient(base_url=worker.url) as client:
        response = await client.post("/completion", json={"prompt": COUNT_TO_THREE})
    assert response.status_code == 401


async def test_servers_started_together_do_not_collide(launcher: EmbeddedLauncher, tmp_path: Path) -> None:
    """Two get different ports; a stop leaves no process; the log says how each start was meant."""
    workers = await asyncio.gather(*(launcher.launch(spec(n), tmp_path / f"{n}.log") for n in "ab"))
    try:
        assert workers[0].url != workers[1].url
    finally:
        await asyncio.gather(*(worker.stop() for worker in workers))
    assert [is_gone(worker.pid) for worker in workers] == [True, True]
    assert "SIGTERM" in await workers[0].wait()
    assert "a starts: 1 threads, 2 slots" in (tmp_path / "a.log").read_text()


class Watch:
    """A listener that lets a test wait for workers."""

    def __init__(self) -> None:
        self.ready: asyncio.Queue[RunningWorker] = asyncio.Queue()
        self.losses: list[str] = []

    def worker_ready(self, spec: WorkerSpec, worker: RunningWorker) -> None:
        self.ready.put_nowait(worker)

    def worker_lost(self, worker_id: WorkerId, reason: str, will_restart: bool) -> None:
        self.losses.append(reason)

    def worker_stopped(self, worker_id: WorkerId) -> None:
        self.losses.append("stopped")


async def test_a_killed_server_fails_its_generation_and_comes_back(
    launcher: EmbeddedLauncher, tmp_path: Path
) -> None:
    """kill -9 in the middle of a generation: a typed error, a reason, a new process that works."""
    watch = Watch()
    supervised = SupervisedWorker(
        spec("victim"),
        launcher,
        watch,
        tmp_path,
        max_restarts=1,
        rng=random.Random(0),
        pacing=RestartPacing(first_s=0.01),
    )
    run = asyncio.create_task(supervised.run())
    first = await asyncio.wait_for(watch.ready.get(), timeout=100)
    assert isinstance(first, EmbeddedWorker)
    task, _ = await start_generation(first, "r1", COUNT_TO_THREE)
    os.kill(first.pid, signal.SIGKILL)
    with pytest.raises(EngineUnavailable):
        await task
    second = await asyncio.wait_for(watch.ready.get(), timeout=100)
    generation = await second.engine.generate(make_request(prompt_ids=COUNT_TO_THREE), ignore)
    assert len(generation.token_ids) == 8
    supervised.request_stop()
    await run
    assert "SIGKILL" in watch.losses[0]
    assert watch.losses[1:] == ["stopped"]
    assert second.pid is not None
    assert is_gone(second.pid)


PARENT = """
import asyncio, sys
from pathlib import Path
from heddle.engines.embedded.launcher import EmbeddedLauncher
from heddle.engines.embedded.model import ensure_model
from heddle.types import WorkerId, WorkerSpec

async def main():
    model = ensure_model("smollm2-135m-instruct")
    launcher = EmbeddedLauncher(model, context_tokens=256, ready_timeout_s=100)
    worker = await launcher.launch(WorkerSpec(WorkerId("orphan"), 1, 1), Path(sys.argv[1]))
    print(worker.pid, flush=True)
    await asyncio.sleep(3600)

asyncio.run(main())
"""


async def test_a_server_does_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    """kill -9 of the process that launched it: the server is gone within seconds."""
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, str(tmp_path / "orphan.log"), stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    pid = int(await asyncio.wait_for(parent.stdout.readline(), timeout=100))
    assert not is_gone(pid)
    parent.kill()
    await parent.wait()
    await eventually(lambda: is_gone(pid))


async def test_a_server_ends_with_its_standard_input(launcher: EmbeddedLauncher, tmp_path: Path) -> None:
    """The second tie to the parent, which also holds where the kernel offers no signal."""
    worker = await launcher.launch(spec("tied"), tmp_path / "tied.log")
    assert worker.process.stdin is not None
    worker.process.stdin.close()
    assert "exited with code 0" in await asyncio.wait_for(worker.wait(), timeout=10)
    await worker.stop()


async def test_a_file_that_is_no_model_says_so(tmp_path: Path) -> None:
    """Whether the header or the content is wrong, the start fails with a reason and leaves nothing."""
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF" + b"\0" * 100)
    broken = EmbeddedLauncher(path, context_tokens=256, ready_timeout_s=30, cache_dir=tmp_path / "cache")
    with pytest.raises((ConfigError, EngineError), match=r"broken\.gguf|exited"):
        await broken.launch(spec("broken"), tmp_path / "broken.log")
    assert list((tmp_path / "cache" / "streamable").iterdir()) == []


async def test_more_threads_than_cores_is_a_configuration_error(
    launcher: EmbeddedLauncher, tmp_path: Path
) -> None:
    """Nothing is started."""
    greedy = WorkerSpec(WorkerId("greedy"), tp_degree=4096, slots=1)
    with pytest.raises(ConfigError, match="4096 threads"):
        await launcher.launch(greedy, tmp_path / "greedy.log")
