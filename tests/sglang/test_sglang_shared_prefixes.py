"""Prefixes that real SGLang servers share through the store, between equal and different parallel degrees."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from sglang_servers import ARGUMENTS, Kind, Server, real_kind
from sglang_steps import prompt, request

from heddle.api.schemas import BatchRequest
from heddle.app import open_coordinator
from heddle.config import parse_config
from heddle.coordinator.assembly import EngineKit
from heddle.engines.sglang.adapter import SGLangEngine, SGLangSettings
from heddle.engines.sglang.attach import AttachLauncher, find_servers
from heddle.engines.sglang.prefix_store import (
    PrefixStore,
    StoreKind,
    expose_kv_store,
    kv_heads_of,
    store_arguments,
    store_environment,
)
from heddle.errors import EngineRejected, UnsupportedByEngine
from heddle.records import Trajectory, decode_trajectory
from heddle.text.byte_tokenizer import ByteTokenizer
from moving_planner import offer_nomad

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(900)]

PAGE_TOKENS = 32
PROMPT_TOKENS, SAMPLED_TOKENS = 600, 40
STORED_TOKENS = (PROMPT_TOKENS + SAMPLED_TOKENS - 1) // PAGE_TOKENS * PAGE_TOKENS
"""Whole pages of what is computed; the last sampled token is not."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Two servers of one rank and one of two, on one store."""

    servers: dict[str, Server]
    store: PrefixStore

    def pages(self) -> int:
        """Pages in the store that have all their shards."""
        files = self.store.directory.glob("*/*.*")
        return sum(path.parent.name != "unfinished" for path in files) // self.store.kv_heads

    async def written(self, pages: int) -> None:
        """Until so many pages are there: servers write behind their answers."""
        async with asyncio.timeout(60):
            while self.pages() < pages:
                await asyncio.sleep(0.05)

    @asynccontextmanager
    async def engine(self, name: str) -> AsyncIterator[SGLangEngine]:
        engine = await SGLangEngine.connect(self.servers[name].url)
        try:
            yield engine
        finally:
            await engine.close()


@pytest.fixture(scope="module")
def real() -> Kind:
    return real_kind()


@pytest.fixture(scope="module")
def pool(real: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    state = tmp_path_factory.mktemp("shared")
    memory = Path(tempfile.mkdtemp(dir="/dev/shm"))
    store = PrefixStore(
        StoreKind.HEDDLE,
        model="tiny",
        kv_heads=kv_heads_of(real.model),
        largest_tp=8,
        directory=memory,
        budget_bytes=1 << 28,
        page_tokens=PAGE_TOKENS,
    )
    arguments = (*ARGUMENTS, *store_arguments(store, on_cpu=True))
    expose_kv_store(state)
    environment = store_environment(store, state, os.environ)
    servers: dict[str, Server] = {}

    try:
        for name, ranks in (("one", 1), ("other", 1), ("wide", 2)):  # side by side: each takes a core's time
            cores = {**environment, "BIND": "|".join(map(str, range(ranks)))}
            servers[name] = real.launch(state / f"{name}.log", (*arguments, "--tp-size", str(ranks)), cores)
        for server in servers.values():
            server.wait_ready()
        yield Pool(servers, store)
    finally:
        for server in servers.values():
            server.kill()
        shutil.rmtree(memory)


@pytest.mark.parametrize(
    ("source", "target", "seed"),
    [("one", "other", 1), ("one", "wide", 2), ("wide", "one", 3)],
    ids=["equal degrees", "one rank to two", "two ranks to one"],
)
async def test_a_moved_prefix_comes_from_the_store_and_goes_on_as_if_it_had_stayed(
    pool: Pool, source: str, target: str, seed: int
) -> None:
    """Whole pages are read, the rest is computed, and the continuation has the same tokens."""
    async with pool.engine(source) as home, pool.engine(target) as away:
        before = pool.pages()
        first = await home.generate(request(prompt(PROMPT_TOKENS, seed), SAMPLED_TOKENS), lambda chunk: None)
        context = [*prompt(PROMPT_TOKENS, seed), *first.token_ids]
        await pool.written(before + STORED_TOKENS // PAGE_TOKENS)

        transfer = await home.transfer(context, away)
        assert transfer.sources is not None
        assert (transfer.sources.storage, transfer.sources.device) == (STORED_TOKENS, 0)
        assert transfer.computed_tokens == len(context) - STORED_TOKENS

        longer = [*context, *range(500, 540)]
        moved = await away.generate(request(longer, 16), lambda chunk: None)
        stayed = await home.generate(request(longer, 16), lambda chunk: None)
        assert moved.token_ids == stayed.token_ids
        assert moved.logprobs == pytest.approx(stayed.logprobs, abs=1e-3)
        assert moved.cached_tokens >= STORED_TOKENS
        assert moved.cache_sources is not None
        assert moved.cache_sources.storage == 0, "it was there already"


async def test_a_prefix_of_other_weights_is_never_found(pool: Pool, real: Kind) -> None:
    """The same tokens, computed by other weights, are another prefix."""
    async with pool.engine("one") as home, pool.engine("other") as away:
        before = pool.pages()
        prefix = prompt(PROMPT_TOKENS, 5)
        await home.warm_prefix(prefix)
        await pool.written(before + PROMPT_TOKENS // PAGE_TOKENS)
        await away.update_weights(str(real.other), 1)
        try:
            found = await away.warm_prefix(prefix)
            assert found.tokens == 0
        finally:
            await away.update_weights(str(real.model), 0)
            await flushed(away)
        again = await away.warm_prefix(prefix)
        assert again.sources is not None
        assert again.sources.storage > 0, "with the old weights it is found"


async def flushed(engine: SGLangEngine) -> None:
    """Pages on their way to the store hold a server's cache for a moment after their request has ended."""
    async with asyncio.timeout(30):
        while True:
            try:
                await engine.flush_cache()
            except EngineRejected:
                await asyncio.sleep(0.1)
            else:
                return


async def roll_out(pool: Pool, names: Sequence[str], migration: str, data_dir: Path) -> Trajectory:
    """One trajectory of three steps at temperature 0, through a whole coordinator on these servers."""
    servers = await find_servers([pool.servers[name].url for name in names])
    degrees = [server.facts.tp_size for server in servers]
    launcher = AttachLauncher(
        servers, context_tokens=4096, ready_timeout_s=60.0, engine_settings=SGLangSettings(vocabulary=1024)
    )
    kit = EngineKit(
        launcher,
        ByteTokenizer(),
        servers[0].facts.capabilities,
        "tiny",
        budget=sum(degrees),
        exclusive=True,
        pool="+".join(map(str, degrees)),
    )
    config = parse_config(
        {
            "data_dir": data_dir,
            "engine": {"kind": "fake", "slots": 2, "context_tokens": 4096},
            "decisions": {"migration": migration},
        }
    )
    steps = [{"output_tokens": 40, "tool_seconds": 3.0}] * 2 + [{"output_tokens": 20}]
    request = BatchRequest.model_validate(
        {
            "environment": "replay",
            "prompts": [{"task": {"steps": steps, "prompt_tokens": 100}}],
            "sampling": {"temperature": 0.0},
        }
    )
    async with open_coordinator(config, kit=kit) as coordinator, asyncio.timeout(300):
        status, _ = await coordinator.submit(request)
        page = await coordinator.trajectories(status.batch_id, after=None, limit=1, wait_s=280.0)
    return decode_trajectory(page.records[0])


async def test_a_trajectory_moves_between_servers_of_different_degrees(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """During every tool call, out of the store; its record says so, and its tokens are the same."""
    offer_nomad(monkeypatch)
    stayed = await roll_out(pool, ["other"], "none", tmp_path / "stayed")
    moved = await roll_out(pool, ["one", "wide"], "nomad", tmp_path / "moved")
    assert moved.response_ids == stayed.response_ids
    degrees = [step.tp_degree for step in moved.steps]
    assert sorted(degrees[:2]) == [1, 2]
    assert degrees[2] == degrees[0]
    for step, following in zip(moved.steps, moved.steps[1:], strict=False):
        move = step.migration
        assert move is not None
        assert move.outcome == "moved"
        assert following.cached_tokens >= move.moved_tokens > 0
    [out, back] = [step.migration for step in moved.steps[:2]]
    assert out is not None
    assert out.sources is not None
    assert out.sources.storage == out.moved_tokens
    assert back is not None
    assert back.sources is not None
    assert back.sources.device > 0, "it had been here before"
    assert moved.timing.parts == pytest.approx(moved.timing.wall, rel=0.01)


async def test_a_server_without_a_store_cannot_take_part(pool: Pool) -> None:
    """Said before anything is tried."""
    async with pool.engine("one") as home, pool.engine("other") as away:
        assert home.capabilities.kv_transfer
        away.capabilities = type(away.capabilities)(prefix_warmup=True)
        with pytest.raises(UnsupportedByEngine, match="has no store"):
            await home.transfer(prompt(64, 9), away)


def test_the_storage_class_in_its_own_environment(real: Kind, tmp_path: Path) -> None:
    """Torch tensors of every layout between all sizes; and nothing of Heddle but the store is imported."""
    home = Path(real.command[0]).parent
    memory = Path(tempfile.mkdtemp(dir="/dev/shm"))
    try:
        run = subprocess.run(
            [home / "venv/bin/python", Path(__file__).with_name("hicache_glue.py"), memory],
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": f"{expose_kv_store(tmp_path)}:{home / 'shim'}",
                "SGLANG_USE_CPU_ENGINE": "1",
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
        )
    finally:
        shutil.rmtree(memory)
    assert run.returncode == 0, run.stderr[-2000:]
    package = {name for name in json.loads(run.stdout.splitlines()[-1]) if name != "heddle_sglang_cpu"}
    assert {name.partition(".")[0] for name in package} == {"heddle_kv_store"}
