"""Prefixes that real SGLang servers share through the store, between equal and different parallel degrees."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from sglang_servers import ARGUMENTS, Kind, Server, real_kind
from sglang_steps import prompt, request

from heddle.engines.sglang.adapter import SGLangEngine
from heddle.engines.sglang.prefix_store import (
    PrefixStore,
    StoreKind,
    expose_kv_store,
    kv_heads_of,
    store_arguments,
    store_environment,
)
from heddle.errors import UnsupportedByEngine

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]

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
        for name, more, cores in (("one", (), "0"), ("other", (), "0"), ("wide", ("--tp", "2"), "0|1")):
            log = state / f"{name}.log"
            servers[name] = real.start(log, (*arguments, *more), {**environment, "BIND": cores})
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
            await away.flush_cache()
        again = await away.warm_prefix(prefix)
        assert again.sources is not None
        assert again.sources.storage > 0, "with the old weights it is found"


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
