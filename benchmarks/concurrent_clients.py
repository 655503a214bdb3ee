"""Many clients at once: every batch gets on, nobody gets an error, and status answers stay quick.

    python benchmarks/concurrent_clients.py [--clients 100] [--batches 64] [--prompts 100] [--json]

Three processes: a server on engines that take no time; ``batches`` clients that submit a batch each, all
at the same moment, and collect its trajectories by long polls; and all other clients, which ask for the
status of batches, one request after the other with a short pause, for as long as any batch is open. These are
clients of aiohttp's, which take less of the processor than ``heddle.client``. They ask for what was accepted,
and for a batch that was there before, so that what an idle server and the clients themselves take is known.

Printed: errors; trajectories lost or doubled; latency of status requests, before and during the batches, and
of submissions; how late the loop of those who watch runs; trajectories per second; how evenly the batches got
on: seconds from the acceptance of a batch to its first trajectory, of the median one and of the one that
waited longest; and seconds of processor time of each process while batches were open.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeAlias

import aiohttp
import psutil

from heddle.client import Client
from heddle.errors import HeddleError

PAUSE_S = 0.05
"""Of a client that only watches, between two requests."""
LAG_TICK_S = 0.005
"""Between two looks at how late their loop is."""
IDLE_S = 3.0
"""For which they watch before the batches come."""


@dataclass(frozen=True, slots=True)
class Server:
    """Where it is, and what to measure it by."""

    url: str
    process: psutil.Process


Accepted: TypeAlias = "ctypes.Array[ctypes.c_byte]"
"""Whether each batch was accepted; shared by the processes of the clients."""


@dataclass(slots=True)
class Watched:
    """What those saw who asked for the status."""

    answers: list[tuple[float, float]] = field(default_factory=list)
    """When it was asked for (monotonic seconds, the same in all processes), and seconds until the answer."""
    lags: list[tuple[float, float]] = field(default_factory=list)
    """How late a timer of their process fired, with its beginning."""
    errors: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Seen:
    """What all clients saw."""

    accepted: Accepted
    began: float = 0.0
    """When the batches came (monotonic seconds)."""
    submit_s: list[float] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    """Of each batch, from its acceptance to its first trajectory."""
    last_s: list[float] = field(default_factory=list)
    """Of each batch, from the beginning to its last trajectory."""
    errors: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    doubled: int = 0
    watched: Watched = field(default_factory=Watched)
    processor_s: dict[str, float] = field(default_factory=dict)
    """Of each process while batches were open."""


@contextmanager
def serving() -> Iterator[Server]:
    """A server on instant engines."""
    with tempfile.TemporaryDirectory(prefix="heddle-clients-") as base:
        command = [sys.executable, "-m", "heddle", "serve", "--port", "0", "--json", "--pool", "1+1+1+1"]
        command += [
            "--data-dir",
            str(Path(base, "data")),
            "--set",
            "engine.kind=fake",
            "--set",
            "engine.slots=64",
        ]
        with (
            Path(base, "log").open("wb") as log,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log) as process,
        ):
            try:
                assert process.stdout is not None
                url = json.loads(process.stdout.readline())["url"]
                yield Server(url, psutil.Process(process.pid))
            finally:
                process.terminate()
                process.wait(60)


async def roll_out(client: Client, number: int, prompts: int, seen: Seen) -> None:
    """Submit one batch and collect all of it."""
    tasks = [{"task": {"low": 1, "high": 100, "secret": 1 + n % 100}} for n in range(prompts)]
    limits = {"max_steps": 2, "max_tokens": 64, "max_tokens_per_step": 32}
    try:
        asked = time.monotonic()
        batch = await client.submit(tasks, environment="guess", batch_id=f"c{number}", limits=limits)
        accepted = time.monotonic()
        seen.submit_s.append(accepted - asked)
        seen.accepted[number] = True
        arrived: Counter[str] = Counter()
        async for trajectory in client.trajectories(batch.batch_id):
            if not arrived:
                seen.first_s.append(time.monotonic() - accepted)
            arrived[trajectory.trajectory_id] += 1
        seen.last_s.append(time.monotonic() - seen.began)
        seen.lost += prompts - len(arrived)
        seen.doubled += arrived.total() - len(arrived)
    except (HeddleError, OSError) as exc:
        seen.errors[f"{type(exc).__name__}: {exc}"] += 1


async def watch(url: str, first: int, accepted: Accepted, watched: Watched, over: asyncio.Event) -> None:
    """Ask for the status of one batch after the other."""
    number = first
    async with aiohttp.ClientSession(url) as session:
        while not over.is_set():
            known = [number for number, flag in enumerate(accepted[:]) if flag]
            number = next((n for n in known if n > number), known[0])
            asked = time.monotonic()
            async with session.get(f"/v1/batches/c{number}") as response:
                await response.read()
            watched.answers.append((asked, time.monotonic() - asked))
            if response.status != 200:
                watched.errors[f"status {response.status}"] += 1
            await asyncio.sleep(PAUSE_S)


async def feel_lag(watched: Watched, over: asyncio.Event) -> None:
    """How late the loop of those who watch runs: their own part of every latency."""
    while not over.is_set():
        began = time.monotonic()
        await asyncio.sleep(LAG_TICK_S)
        watched.lags.append((began, time.monotonic() - began - LAG_TICK_S))


async def _watch_all(url: str, clients: int, accepted: Accepted, control: Connection) -> Watched:
    watched, over = Watched(), asyncio.Event()
    asyncio.get_running_loop().add_reader(control.fileno(), over.set)
    everybody = [watch(url, number, accepted, watched, over) for number in range(clients)]
    await asyncio.gather(feel_lag(watched, over), *everybody)
    return watched


def watch_all(url: str, clients: int, accepted: Accepted, control: Connection) -> None:
    """A process of its own: watch until a word comes, and answer with what was seen."""
    control.send(asyncio.run(_watch_all(url, clients, accepted, control)))


@contextmanager
def watching(server: Server, clients: int, seen: Seen) -> Iterator[psutil.Process]:
    """Watch from a process of its own."""
    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=watch_all, args=(server.url, clients, seen.accepted, there))
    process.start()
    try:
        yield psutil.Process(process.pid)
        here.send("over")
        seen.watched = here.recv()
    finally:
        process.join(10)
        process.kill()


async def collect(server: Server, batches: int, prompts: int, seen: Seen) -> None:
    """All batches at once."""
    everybody = [Client(server.url) for _ in range(batches)]
    try:
        await asyncio.sleep(IDLE_S)
        seen.began = time.monotonic()
        await asyncio.gather(
            *(roll_out(client, number, prompts, seen) for number, client in enumerate(everybody, start=1))
        )
    finally:
        for client in everybody:
            await client.close()


async def begin(server: Server, seen: Seen) -> None:
    """One batch before all others, so that there is something to ask for."""
    async with Client(server.url) as client:
        await roll_out(client, 0, 1, seen)
    seen.submit_s, seen.first_s, seen.last_s = [], [], []


def measure(server: Server, clients: int, batches: int, prompts: int) -> Seen:
    """Everybody at once."""
    seen = Seen(multiprocessing.Array("b", batches + 1, lock=False))
    asyncio.run(begin(server, seen))
    with watching(server, clients - batches, seen) as watchers:
        processes = {"server": server.process, "collectors": psutil.Process(), "watchers": watchers}
        before = {name: _processor_s(process) for name, process in processes.items()}
        asyncio.run(collect(server, batches, prompts, seen))
        seen.processor_s = {name: _processor_s(process) - before[name] for name, process in processes.items()}
    seen.errors.update(seen.watched.errors)
    return seen


def _processor_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def between(first: float, last: float, timed: Sequence[tuple[float, float]]) -> list[float]:
    """What was taken in this interval."""
    return [seconds for at, seconds in timed if first <= at < last]


def quantile(values: list[float], share: float) -> float:
    """The value below which this share lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def figures(seen: Seen, batches: int, prompts: int) -> dict[str, float]:
    """What is printed. Latencies are milliseconds."""
    makespan = max(seen.last_s, default=float("nan"))
    idle_s = between(seen.began - IDLE_S / 2, seen.began, seen.watched.answers)
    status_s = between(seen.began, seen.began + makespan, seen.watched.answers)
    lag_s = between(seen.began, seen.began + makespan, seen.watched.lags)
    return {
        "errors": seen.errors.total(),
        "lost": seen.lost,
        "doubled": seen.doubled,
        "idle_p50_ms": 1000 * quantile(idle_s, 0.5),
        "idle_p99_ms": 1000 * quantile(idle_s, 0.99),
        "status_requests": len(status_s),
        "status_p50_ms": 1000 * quantile(status_s, 0.5),
        "status_p99_ms": 1000 * quantile(status_s, 0.99),
        "status_max_ms": 1000 * max(status_s, default=float("nan")),
        "watchers_lag_p99_ms": 1000 * quantile(lag_s, 0.99),
        "watchers_lag_max_ms": 1000 * max(lag_s, default=float("nan")),
        "submit_p50_ms": 1000 * quantile(seen.submit_s, 0.5),
        "submit_p99_ms": 1000 * quantile(seen.submit_s, 0.99),
        "makespan_s": makespan,
        "trajectories_per_s": batches * prompts / makespan,
        "first_p50_s": quantile(seen.first_s, 0.5),
        "first_max_s": max(seen.first_s, default=float("nan")),
        **{f"{name}_cpu_s": seconds for name, seconds in seen.processor_s.items()},
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--batches", type=int, default=64)
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with serving() as server:
        seen = measure(server, options.clients, options.batches, options.prompts)
    for words, count in seen.errors.most_common(5):
        print(f"{count} x {words}", file=sys.stderr)
    found = figures(seen, options.batches, options.prompts)
    if options.json:
        print(json.dumps(found))
    else:
        print("\n".join(f"{name:20} {figure:12.3f}" for name, figure in found.items()))


if __name__ == "__main__":
    main()
