"""What it costs an SGLang server to read a prefix from the shared store, against computing it.

Starts real SGLang servers on this machine's CPU (``scripts/sglang-cpu`` installs them), one for each degree
of ``--tp``, on one store in ``/dev/shm``; or uses ``--workers``, servers that run and share one. For every
ordered pair of them and every length: the source computes a prefix and has time to write its pages; then the
time of ``Engine.transfer`` to the target, how many of the tokens came from the store, and the time that the
target takes to compute as many tokens that nobody has.

    python benchmarks/sglang_migration.py --tp 1 2
    python benchmarks/sglang_migration.py --model DIR --tp 1 1       # the folder of a model, say of --gguf

Medians of ``--repeats``. Times on a CPU say nothing of a GPU, where computing is some hundred times as fast.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import count, permutations
from pathlib import Path

from heddle.engines.memory_files import MemoryDirectory, memory_file_system
from heddle.engines.process import end_process
from heddle.engines.sglang.adapter import SGLangEngine
from heddle.engines.sglang.prefix_store import (
    PrefixStore,
    StoreKind,
    expose_kv_store,
    kv_heads_of,
    store_arguments,
    store_environment,
)
from heddle.errors import EngineError

ROOT = Path(__file__).resolve().parent.parent
PAGE_TOKENS = 32
READY_TIMEOUT_S = 300.0
FAMILY = "heddle-prefixes-"
VOCABULARY = 1000
"""Ids are drawn from so many; every model has them."""


@dataclass(frozen=True, slots=True)
class Server:
    """One that takes part."""

    name: str
    engine: SGLangEngine


@dataclass(frozen=True, slots=True)
class Row:
    """One prefix that went from one server to another."""

    transfer_s: float
    storage_tokens: int
    computed_tokens: int
    compute_s: float


class Prefixes:
    """Prompts that share nothing."""

    def __init__(self) -> None:
        self._seeds = count(1)

    def fresh(self, tokens: int) -> list[int]:
        return random.Random(next(self._seeds)).choices(range(3, VOCABULARY), k=tokens)


@asynccontextmanager
async def servers_on_cpu(home: Path, model: Path, degrees: Sequence[int]) -> AsyncIterator[list[Server]]:
    """Started one after the other, each bound to as many cores as it has ranks."""
    async with AsyncExitStack() as stack:
        state = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        memory = MemoryDirectory(memory_file_system() / f"{FAMILY}bench-{os.getpid()}", family=FAMILY)
        store = PrefixStore(
            StoreKind.HEDDLE,
            model=model.name,
            kv_heads=kv_heads_of(model),
            largest_tp=8,
            directory=memory.path,
            budget_bytes=2 * 2**30,
            page_tokens=PAGE_TOKENS,
        )
        expose_kv_store(state)
        environment = {**os.environ, **store_environment(store, state, os.environ)}
        servers: list[Server] = []
        for number, degree in enumerate(degrees):
            name = f"{'ABCDEFGH'[number]} (tp {degree})"
            arguments = (
                *("--model-path", str(model), "--skip-tokenizer-init", "--tp-size", str(degree)),
                *("--max-total-tokens", "32768", "--max-running-requests", "4"),
                "--incremental-streaming-output",
                *store_arguments(store, on_cpu=True),
            )
            url = await stack.enter_async_context(
                _process(home / "serve", arguments, degree, environment, state / f"{number}.log")
            )
            engine = await _connect(url, state / f"{number}.log")
            stack.push_async_callback(engine.close)
            servers.append(Server(name, engine))
        yield servers


@asynccontextmanager
async def _process(
    serve: Path, arguments: Sequence[str], degree: int, environment: dict[str, str], log: Path
) -> AsyncIterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    cores = "|".join(str(core) for core in range(degree))
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(str(serve), str(port), *arguments),
            stdout=output,
            stderr=output,
            env={**environment, "BIND": cores},
            start_new_session=True,
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await end_process(process, grace_s=5.0)


async def _connect(url: str, log: Path) -> SGLangEngine:
    give_up_at = time.monotonic() + READY_TIMEOUT_S
    while True:
        try:
            engine = await SGLangEngine.connect(url)
            try:
                await engine.health()
            except EngineError:
                await engine.close()
                raise
            return engine
        except EngineError as exc:
            if time.monotonic() > give_up_at:
                text = await asyncio.to_thread(log.read_text, errors="replace")
                raise SystemExit(f"{url} is not ready: {exc}\n{text[-2000:]}") from exc
            await asyncio.sleep(1.0)


async def measure(source: Server, target: Server, tokens: int, prefixes: Prefixes) -> Row:
    ids = prefixes.fresh(tokens)
    await source.engine.warm_prefix(ids)
    await asyncio.sleep(0.5 + tokens / 2000)  # servers write behind their answers, and say nothing of it
    began = time.perf_counter()
    transfer = await source.engine.transfer(ids, target.engine)
    transfer_s = time.perf_counter() - began
    fresh = prefixes.fresh(tokens)
    began = time.perf_counter()
    await target.engine.warm_prefix(fresh)
    compute_s = time.perf_counter() - began
    storage = transfer.sources.storage if transfer.sources is not None else 0
    return Row(transfer_s, storage, transfer.computed_tokens, compute_s)


def report(source: Server, target: Server, tokens: int, rows: Sequence[Row]) -> None:
    transfer_s = statistics.median(row.transfer_s for row in rows)
    compute_s = statistics.median(row.compute_s for row in rows)
    storage = min(row.storage_tokens for row in rows)
    print(
        f"{source.name:9} -> {target.name:9} {tokens:6} tokens   {storage:6} from the store   "
        f"{transfer_s * 1e3:8.0f} ms   computed {compute_s * 1e3:8.0f} ms   {compute_s / transfer_s:6.1f}x"
    )


async def compare(servers: Sequence[Server], lengths: Sequence[int], repeats: int) -> None:
    prefixes = Prefixes()
    for server in servers:
        await server.engine.warm_prefix(prefixes.fresh(200))
    for source, target in permutations(servers, 2):
        for tokens in lengths:
            rows = [await measure(source, target, tokens, prefixes) for _ in range(repeats)]
            report(source, target, tokens, rows)


async def run(options: argparse.Namespace) -> None:
    if options.workers:
        engines = [await SGLangEngine.connect(url) for url in options.workers]
        try:
            servers = [Server(url, engine) for url, engine in zip(options.workers, engines, strict=True)]
            await compare(servers, options.lengths, options.repeats)
        finally:
            for engine in engines:
                await engine.close()
        return
    home = options.home or await asyncio.to_thread(_install)
    async with servers_on_cpu(home, options.model or home / "model" / "tiny", options.tp) as servers:
        await compare(servers, options.lengths, options.repeats)


def _install() -> Path:
    run = subprocess.run([ROOT / "scripts" / "sglang-cpu"], stdout=subprocess.PIPE, text=True, check=True)
    return Path(run.stdout.strip())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tp", type=int, nargs="+", default=[1, 1])
    parser.add_argument("--model", type=Path)
    parser.add_argument("--home", type=Path, help="where SGLang is installed, as the script prints it")
    parser.add_argument("--workers", nargs="+", metavar="URL")
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--repeats", type=int, default=3)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
