"""New weights for a pool of two servers: both serve them, or neither does; each token says whose it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from job_harness import TOKENIZER, Job, collect

from heddle.api.schemas import WeightsRequest
from heddle.api.service import ServerEvent, WeightsStatus, WorkerStatus
from heddle.app import open_coordinator
from heddle.coordinator.assembly import EngineKit
from heddle.coordinator.service import Coordinator
from heddle.engines.fake import FakeEngine
from heddle.engines.sglang.adapter import SGLangSettings
from heddle.engines.sglang.attach import AttachLauncher, find_servers
from heddle.engines.sglang.client import SGLangClient
from heddle.engines.sglang.facts import ask_weight_version
from heddle.errors import Conflict, EngineUnavailable, StoreError, UnsupportedByEngine
from heddle.records import Trajectory
from heddle.testing import MockSettings, MockSGLang, MockTiming
from heddle.text.byte_tokenizer import TURN_END

BASE = "base"
REPLAY = [{"output_tokens": 60}, {"output_tokens": 60}]
"""Two steps of lengths that nothing cuts short."""


@dataclass
class Pool:
    """A coordinator on two mocks, which are kept from each other's checkpoints."""

    coordinator: Coordinator
    mocks: list[MockSGLang]

    async def update(self, version: int, path: str | None = None, **fields: object) -> WeightsStatus:
        request = WeightsRequest.model_validate({"version": version, "path": path, **fields})
        return await self.coordinator.update_weights(request)

    async def served(self, *numbers: int) -> list[int]:
        """The weight versions of the servers, or of those with these numbers, in their own words."""
        versions = []
        for number in numbers or range(len(self.mocks)):
            client = SGLangClient(self.mocks[number].url, streams=1)
            versions.append(await ask_weight_version(client))
            await client.close()
        return versions

    async def worker(self, number: int) -> WorkerStatus:
        return (await self.coordinator.workers())[number]

    async def until_ready(self, count: int = 2) -> None:
        async with asyncio.timeout(30):
            while [worker.phase for worker in await self.coordinator.workers()].count("ready") < count:
                await asyncio.sleep(0.01)


def settings(*checkpoints: str, decode_s: float = 0.0) -> MockSettings:
    """A server that has these weights within its reach."""
    return MockSettings(
        model_path=BASE,
        weight_version="0",
        vocabulary=512,
        end_id=TURN_END,
        context_length=4096,
        checkpoints=(BASE, *checkpoints),
        incremental_streaming_output=True,
        timing=MockTiming((decode_s,)),
    )


@asynccontextmanager
async def mocks(*each: MockSettings) -> AsyncIterator[list[MockSGLang]]:
    """Servers with these settings."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(MockSGLang(one)) for one in each]


@asynccontextmanager
async def pool(tmp_path: Path, servers: list[MockSGLang]) -> AsyncIterator[Pool]:
    """A coordinator whose workers are these servers, all of them ready."""
    found = await find_servers([server.url for server in servers])
    launcher = AttachLauncher(
        found,
        context_tokens=2048,
        ready_timeout_s=30.0,
        engine_settings=SGLangSettings(end_ids=(TURN_END,)),
    )
    degrees = "+".join("1" * len(servers))
    kit = EngineKit(
        launcher,
        TOKENIZER,
        found[0].facts.capabilities,
        "mock",
        budget=len(servers),
        weights_path=BASE,
        pool=degrees,
    )
    config = Job(slots=2, context_tokens=2048).config(tmp_path)
    async with open_coordinator(config, kit=kit) as coordinator:
        made = Pool(coordinator, servers)
        yield made


async def start_batch(made: Pool) -> str:
    """Four replays, two on each worker, that are generating when this returns."""
    batch = Job().batch(environment="replay", prompts=[{"task": {"steps": REPLAY}}] * 4)
    status, _ = await made.coordinator.submit(batch)
    async with asyncio.timeout(30):
        while sum(len(mock.generate_bodies) for mock in made.mocks) < 4:
            await asyncio.sleep(0.01)
    return status.batch_id


def versions(records: list[Trajectory]) -> set[int]:
    """Every weight version that sampled a token."""
    return {version for record in records for version in record.weight_versions}


async def events_of(made: Pool, name: str) -> ServerEvent:
    """The first event of this name."""
    async with asyncio.timeout(10):
        async for event in made.coordinator.events(0):
            if event.name == name:
                return event
    raise AssertionError("the stream ends only by being closed")


@pytest.mark.parametrize("pause", ["retract", "abort", "in_place"])
async def test_an_update_in_mid_generation_marks_every_token(tmp_path: Path, pause: str) -> None:
    """All trajectories go on; tokens before it are of the old weights, tokens after it of the new ones."""
    async with mocks(*[settings("next", decode_s=0.005)] * 2) as servers, pool(tmp_path, servers) as made:
        await made.until_ready()
        batch_id = await start_batch(made)
        assert await made.update(1, "next", pause=pause) == WeightsStatus("updated", 1, ["w0", "w1"])
        assert await made.served() == [1, 1]
        records = await collect(made.coordinator, batch_id)
    assert versions(records) == {0, 1}
    for record in records:
        assert record.sampled_tokens == 120
        assert record.weight_versions == sorted(record.weight_versions)
        assert record.steps[-1].weight_version == 1


async def test_the_same_update_again_changes_nothing(tmp_path: Path) -> None:
    """Also after a restart of Heddle; a version that is not newer is refused, whatever it brings."""
    async with mocks(*[settings("next", "other")] * 2) as servers:
        async with pool(tmp_path, servers) as made:
            await made.until_ready()
            assert (await made.update(3, "next")).status == "updated"
            assert (await made.update(3, "next")).status == "unchanged"
            for version, path in ((3, "other"), (2, "next")):
                with pytest.raises(Conflict, match="version 3 serves already"):
                    await made.update(version, path)
        async with pool(tmp_path, servers) as made:
            await made.until_ready()
            assert (await made.update(3, "next")).status == "unchanged"
            assert (await made.worker(0)).weight_version == 3


async def test_a_worker_that_refuses_leaves_all_with_what_they_served(tmp_path: Path) -> None:
    """The other one, which had taken them, is taken back; nothing is generated by the new weights."""
    async with (
        mocks(settings("next", decode_s=0.005), settings(decode_s=0.005)) as servers,
        pool(tmp_path, servers) as made,
    ):
        await made.until_ready()
        batch_id = await start_batch(made)
        with pytest.raises(EngineUnavailable, match=r"version 1 was not loaded, 0 serves on; w1: .*"):
            await made.update(1, "next")
        assert await made.served() == [0, 0]
        assert (await events_of(made, "weights.refused")).data["serves"] == 0
        records = await collect(made.coordinator, batch_id)
        assert versions(records) == {0}
        assert [worker.restarts for worker in await made.coordinator.workers()] == [0, 0]
    assert [record.sampled_tokens for record in records] == [120] * 4


async def test_weights_that_cannot_be_remembered_do_not_serve(tmp_path: Path) -> None:
    """A Heddle that comes back would not know of them. With room on the disk the same call succeeds."""
    obstacle = tmp_path / "weights.new"
    async with mocks(*[settings("next")] * 2) as servers, pool(tmp_path, servers) as made:
        await made.until_ready()
        obstacle.mkdir()
        with pytest.raises(StoreError, match="cannot write"):
            await made.update(1, "next")
        assert await made.served() == [0, 0]
        obstacle.rmdir()
        assert (await made.update(1, "next")).status == "updated"


async def test_a_worker_that_dies_meanwhile_leaves_the_others_with_what_they_served(tmp_path: Path) -> None:
    """It serves nothing; its trajectories go on elsewhere."""
    async with mocks(*[settings("next", decode_s=0.005)] * 2) as servers, pool(tmp_path, servers) as made:
        await made.until_ready()
        batch_id = await start_batch(made)
        servers[1].crash("out of memory")
        with pytest.raises(EngineUnavailable, match="w1"):
            await made.update(1, "next")
        records = await collect(made.coordinator, batch_id)
        assert await made.served(0) == [0]
    assert versions(records) == {0}


async def test_weights_are_pushed_by_a_trainer(tmp_path: Path) -> None:
    """Each call to all workers, with what is a worker's own; the server's bracket is Heddle's business."""
    calls = [
        {"endpoint": "update_weights_from_distributed", "body": {"names": ["a"]}},
        {
            "endpoint": "update_weights_from_tensor",
            "body": {"serialized_named_tensors": ["x"]},
            "per_worker": {"w1": {"serialized_named_tensors": ["y"]}},
        },
    ]
    async with mocks(*[settings()] * 2) as servers, pool(tmp_path, servers) as made:
        await made.until_ready()
        assert (await made.update(5, calls=calls)).version == 5
        assert await made.served() == [5, 5]
        assert (await made.update(5, calls=calls)).status == "unchanged"
        records = await collect(made.coordinator, await start_batch(made))
    assert versions(records) == {5}


async def test_a_push_that_a_worker_refuses_is_undone_from_the_disk(tmp_path: Path) -> None:
    """Nobody knows what half a push has made of the weights: all are read again."""
    calls = [{"endpoint": "update_weights_from_distributed"}, {"endpoint": "update_weights_from_ipc"}]
    async with mocks(*[settings()] * 2) as servers, pool(tmp_path, servers) as made:
        await made.until_ready()
        with pytest.raises(EngineUnavailable, match="version 1 was not loaded"):
            await made.update(1, calls=calls)  # the mock has no such endpoint
        assert await made.served() == [0, 0]
        assert (await made.update(1, calls=calls[:1])).status == "updated"


async def test_a_worker_that_comes_up_late_loads_what_serves_before_it_serves(tmp_path: Path) -> None:
    """It was started with other weights than those that were committed meanwhile."""
    async with mocks(*[settings("next")] * 2) as servers:
        async with pool(tmp_path, servers[:1]) as made:
            await made.until_ready(1)
            await made.update(7, "next")
        async with pool(tmp_path, servers) as made:
            await made.until_ready()
            assert await made.served() == [7, 7]
            records = await collect(made.coordinator, await start_batch(made))
    assert versions(records) == {7}


async def test_a_worker_without_pushed_weights_serves_nothing_until_it_has_them(tmp_path: Path) -> None:
    """Nobody can read them from anywhere; the next push brings them to all."""
    push = [{"endpoint": "update_weights_from_tensor"}]
    async with mocks(*[settings()] * 2) as servers:
        async with pool(tmp_path, servers[:1]) as made:
            await made.until_ready(1)
            await made.update(2, calls=push)
        async with pool(tmp_path, servers) as made:
            await made.until_ready(1)
            await events_of(made, "worker.withheld")
            late = await made.worker(1)
            assert (late.phase, late.weight_version) == ("starting", 0)
            assert late.withheld
            records = await collect(made.coordinator, await start_batch(made))
            assert {step.worker_id for record in records for step in record.steps} == {"w0"}
            assert (await made.update(3, calls=push)).workers == ["w0", "w1"]
            await made.until_ready()
            assert (await made.worker(1)).withheld is None


async def test_dispatch_does_not_resume_in_the_middle_of_an_update(tmp_path: Path) -> None:
    """And an operator's own pause outlasts the update."""
    async with mocks(*[settings("next")] * 2) as servers, pool(tmp_path, servers) as made:
        await made.until_ready()
        update = asyncio.create_task(made.update(1, "next"))
        await asyncio.sleep(0)
        with pytest.raises(Conflict, match="being given new weights"):
            await made.coordinator.resume()
        await update
        await made.coordinator.pause()
        await made.update(2, "next")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await start_batch(made)
        await made.coordinator.resume()
        assert versions(await collect(made.coordinator, "b")) == {2}


async def test_an_engine_with_one_set_of_weights_refuses(tmp_path: Path) -> None:
    """And so does a pool without workers."""
    job = Job(pool="1")
    request = WeightsRequest(version=1, path="next")
    async with job.coordinator(tmp_path) as coordinator:
        assert not FakeEngine.capabilities.weight_update
        async with asyncio.timeout(10):
            while not await coordinator.ready():
                await asyncio.sleep(0.01)
        with pytest.raises(UnsupportedByEngine, match="w0 cannot load new weights"):
            await coordinator.update_weights(request)
