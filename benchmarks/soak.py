"""Half an hour of batches, cancellations, crashes of workers and hasty clients: what grows, and what stays.

    python benchmarks/soak.py [--minutes 30] [--engine embedded] [--seed 0] [--json]

A server of its own gets batch after batch of ``guess`` and ``code`` tasks, with real tools in the sandbox.
Now and then a batch is cancelled, a worker process is killed, a client hangs up in the middle of a long poll.
Every few seconds the coordinator's resident memory, descriptors and threads are looked at, and the memory of
its engine processes; after the first fifth, in which caches fill, lines are fitted to them.

Printed: the slope of the coordinator's memory in MB per hour (and its share of the total), what it held
in the first and in the last tenth of the looks, and the slopes of descriptors and threads per hour; the
memory of one engine process, which is bounded by its prompt cache and begins anew where it was killed; what
is there when all batches are over: trajectories missing or twice, slots taken, programs, directories of
sandboxes; and after the server has stopped: processes. All of the latter must be 0.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from heddle.client import Client
from heddle.environments.taskfiles import load_tasks
from heddle.types import Json

LOOK_S = 5.0
OPEN_BATCHES = 3
WARM_SHARE = 0.2
SETTLE_S = 120.0
ENGINE_MODULE = "heddle.engines.embedded.server"


@dataclass(frozen=True, slots=True)
class Look:
    """The server at one instant."""

    at_s: float
    rss_bytes: int
    descriptors: int
    threads: int
    engine_bytes: tuple[int, ...]
    """Resident memory of each engine process."""


@dataclass(slots=True)
class Soak:
    """What was done, and what came of it."""

    looks: list[Look] = field(default_factory=list)
    wanted: int = 0
    batches: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    kills: int = 0
    cancelled: int = 0
    hung_up: int = 0


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    url: str
    process: subprocess.Popen[bytes]
    data_dir: Path


@contextmanager
def serving(engine: str, base: Path) -> Iterator[Server]:
    """A server with two workers."""
    command = [sys.executable, "-m", "heddle", "serve", "--port", "0", "--json", "--pool", "1+1"]
    command += ["--data-dir", str(base / "data"), "--set", f"engine.kind={engine}"]
    command += ["--set", "engine.max_restarts=10000"]
    with (
        (base / "log").open("wb") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log) as process,
    ):
        try:
            assert process.stdout is not None
            yield Server(json.loads(process.stdout.readline())["url"], process, base / "data")
        finally:
            process.terminate()
            process.wait(60)


def prompts(rng: random.Random) -> list[dict[str, Json]]:
    """A few tasks with tools."""
    tasks = [*load_tasks("guess", limit=20), *load_tasks("code", limit=20)]
    return [entry.as_prompt() for entry in rng.sample(tasks, 4)]


async def follow(client: Client, batch_id: str, soak: Soak) -> None:
    """Collect a batch; records are counted by id."""
    async for trajectory in client.trajectories(batch_id):
        soak.seen[trajectory.trajectory_id] += 1
        soak.statuses[trajectory.status] += 1


async def one_batch(client: Client, number: int, rng: random.Random, soak: Soak) -> None:
    """Submit, perhaps cancel, perhaps hang up and come back; then take everything."""
    limits = {"max_steps": 3, "max_tokens": 120, "max_tokens_per_step": 40}
    batch = await client.submit(
        prompts(rng),
        samples_per_prompt=2,
        batch_id=f"soak{number}",
        limits=limits,
        tools={"constrained": True},
    )
    soak.batches += 1
    soak.wanted += batch.total
    if rng.random() < 0.3:
        hasty = asyncio.create_task(follow(client, batch.batch_id, Soak()))
        await asyncio.sleep(rng.uniform(0.1, 1.0))
        hasty.cancel()
        await asyncio.gather(hasty, return_exceptions=True)
        soak.hung_up += 1
    if rng.random() < 0.2:
        await client.cancel(batch.batch_id)
        soak.cancelled += 1
    await follow(client, batch.batch_id, soak)


async def keep_working(client: Client, rng: random.Random, soak: Soak, until: float) -> None:
    """Batch after batch, a few at a time."""
    number = 0

    async def worker() -> None:
        nonlocal number
        while time.monotonic() < until:
            number += 1
            await one_batch(client, number, rng, soak)

    async with asyncio.TaskGroup() as group:
        for _ in range(OPEN_BATCHES):
            group.create_task(worker())


async def kill_workers(client: Client, rng: random.Random, soak: Soak, until: float) -> None:
    """About one a minute, where workers are processes; none while the last batches end."""
    while True:
        await asyncio.sleep(rng.uniform(30.0, 90.0))
        if time.monotonic() >= until:
            return
        pids = [worker.pid for worker in await client.workers() if worker.pid is not None]
        if pids:
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(rng.choice(pids)).kill()
                soak.kills += 1


async def keep_looking(server: Server, soak: Soak) -> None:
    """Count what the coordinator holds."""
    process = psutil.Process(server.process.pid)
    began = time.monotonic()
    while True:
        with process.oneshot():
            look = Look(
                time.monotonic() - began,
                process.memory_info().rss,
                process.num_fds(),
                process.num_threads(),
                tuple(_engine_bytes(process)),
            )
        soak.looks.append(look)
        await asyncio.sleep(LOOK_S)


def _engine_bytes(server: psutil.Process) -> Iterator[int]:
    for child in server.children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if ENGINE_MODULE in child.cmdline():
                yield child.memory_info().rss


async def run(server: Server, minutes: float, seed: int) -> tuple[Soak, dict[str, float]]:
    """The soak, and what is left when all batches are over."""
    rng, soak = random.Random(seed), Soak()
    async with Client(server.url) as client:
        while not all(worker.phase == "ready" for worker in await client.workers()):
            await asyncio.sleep(0.2)
        until = time.monotonic() + 60.0 * minutes
        async with asyncio.TaskGroup() as group:
            chores = [
                group.create_task(keep_looking(server, soak)),
                group.create_task(kill_workers(client, rng, soak, until)),
            ]
            await keep_working(client, rng, soak, until)
            for chore in chores:
                chore.cancel()
        return soak, await leftovers(client, server, soak)


async def leftovers(client: Client, server: Server, soak: Soak) -> dict[str, float]:
    """What must be 0 once all workers are up again and idle."""
    give_up_at = time.monotonic() + SETTLE_S
    while time.monotonic() < give_up_at and any(w.phase != "ready" for w in await client.workers()):
        await asyncio.sleep(0.5)
    workers = await client.workers()
    engines = {worker.pid for worker in workers}
    children = psutil.Process(server.process.pid).children()
    return {
        "missing": soak.wanted - len(soak.seen),
        "doubled": soak.seen.total() - len(soak.seen),
        "slots_taken": sum(worker.running + worker.waiting + worker.resident for worker in workers),
        "open_batches": sum(batch.state == "running" for batch in await client.batches()),
        "tool_programs": sum(child.pid not in engines for child in children),
        "sandbox_directories": len(await asyncio.to_thread(_sandboxes, server.data_dir)),
    }


def _sandboxes(data_dir: Path) -> list[Path]:
    return list((data_dir / "sandboxes").glob("*/*"))


def slope_per_hour(looks: Sequence[Look], values: Sequence[float]) -> float:
    """Of the line through the values, the first fifth left out."""
    if len(looks) < 3:
        return float("nan")
    times = [look.at_s / 3600.0 for look in looks]
    return statistics.linear_regression(times, values).slope


def figures(soak: Soak, left: dict[str, float], orphans: int) -> dict[str, float]:
    """What is printed."""
    looks = soak.looks[int(WARM_SHARE * len(soak.looks)) :]
    memory = [look.rss_bytes / 1e6 for look in looks]
    tenth = max(1, len(memory) // 10)
    engines = [nbytes / 1e6 for look in looks for nbytes in look.engine_bytes] or [0.0]
    growth = slope_per_hour(looks, memory)
    return {
        "minutes": looks[-1].at_s / 60.0,
        "batches": soak.batches,
        "trajectories": len(soak.seen),
        **{f"status_{name}": count for name, count in sorted(soak.statuses.items())},
        "workers_killed": soak.kills,
        "batches_cancelled": soak.cancelled,
        "clients_hung_up": soak.hung_up,
        "memory_mb": statistics.median(memory),
        "memory_mb_per_hour": growth,
        "memory_share_per_hour": growth / statistics.median(memory),
        "memory_mb_first_tenth": statistics.median(memory[:tenth]),
        "memory_mb_last_tenth": statistics.median(memory[-tenth:]),
        "engine_mb_median": statistics.median(engines),
        "engine_mb_most": max(engines),
        "descriptors": looks[-1].descriptors,
        "descriptors_per_hour": slope_per_hour(looks, [look.descriptors for look in looks]),
        "threads_per_hour": slope_per_hour(looks, [look.threads for look in looks]),
        **left,
        "orphans": orphans,
    }


def main() -> None:
    """Soak and print. The exit code is 1 where something was left that must not be."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--engine", choices=["embedded", "fake"], default="embedded")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="heddle-soak-") as base:
        with serving(options.engine, Path(base)) as server:
            soak, left = asyncio.run(run(server, options.minutes, options.seed))
            below = psutil.Process(server.process.pid).children(recursive=True)
        orphans = sum(process.is_running() and process.status() != "zombie" for process in below)
        found = figures(soak, left, orphans)
    if options.json:
        print(json.dumps(found))
    else:
        print("\n".join(f"{name:24} {figure:12.3f}" for name, figure in found.items()))
    sys.exit(any(left.values()) or orphans > 0)


if __name__ == "__main__":
    main()
