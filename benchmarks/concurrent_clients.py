"""Many clients at once: every batch gets on, nobody gets an error, and status answers stay quick.

    python benchmarks/concurrent_clients.py [--clients 100] [--batches 64] [--prompts 100] [--json]

A server on engines that take no time, in a process of its own. ``batches`` clients submit a batch each, all
at the same moment, and collect its trajectories by long polls; the others ask for the status of batches, one
request after the other with a short pause, for as long as any batch is open. All clients are in this process,
so its own work is part of every latency.

Printed: errors; trajectories lost or doubled; latency of status requests and of submissions; trajectories per
second; and how evenly the batches got on: when the latest of them had its first trajectory, and when the
median one had its last, as shares of the whole.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from heddle.client import Client
from heddle.errors import HeddleError

PAUSE_S = 0.05
"""Of a client that only watches, between two requests."""


@dataclass(slots=True)
class Seen:
    """What the clients saw."""

    began: float = 0.0
    status_s: list[float] = field(default_factory=list)
    submit_s: list[float] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    """Of each batch, from the beginning."""
    last_s: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    doubled: int = 0


@contextmanager
def serving() -> Iterator[str]:
    """The address of a server on instant engines."""
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
                yield json.loads(process.stdout.readline())["url"]
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
        seen.submit_s.append(time.monotonic() - asked)
        arrived: Counter[str] = Counter()
        async for trajectory in client.trajectories(batch.batch_id):
            if not arrived:
                seen.first_s.append(time.monotonic() - seen.began)
            arrived[trajectory.trajectory_id] += 1
        seen.last_s.append(time.monotonic() - seen.began)
        seen.lost += prompts - len(arrived)
        seen.doubled += arrived.total() - len(arrived)
    except (HeddleError, OSError) as exc:
        seen.errors[f"{type(exc).__name__}: {exc}"] += 1


async def watch(client: Client, first: int, batches: int, seen: Seen, over: asyncio.Event) -> None:
    """Ask for the status of one batch after the other."""
    number = first
    while not over.is_set():
        number = (number + 1) % batches
        asked = time.monotonic()
        try:
            await client.batch(f"c{number}")
        except (HeddleError, OSError) as exc:
            seen.errors[f"{type(exc).__name__}: {exc}"] += 1
        else:
            seen.status_s.append(time.monotonic() - asked)
        await asyncio.sleep(PAUSE_S)


async def measure(url: str, clients: int, batches: int, prompts: int) -> Seen:
    """Everybody at once."""
    seen, over = Seen(), asyncio.Event()
    everybody = [Client(url) for _ in range(clients)]
    try:
        while not (await everybody[0].workers()):
            await asyncio.sleep(PAUSE_S)
        seen.began = time.monotonic()
        async with asyncio.TaskGroup() as working, asyncio.TaskGroup() as watching:
            rolling = [
                working.create_task(roll_out(client, number, prompts, seen))
                for number, client in enumerate(everybody[:batches])
            ]
            while len(seen.submit_s) + seen.errors.total() < batches:
                await asyncio.sleep(PAUSE_S)
            for number, client in enumerate(everybody[batches:]):
                watching.create_task(watch(client, number, batches, seen, over))
            await asyncio.wait(rolling)
            over.set()
    finally:
        for client in everybody:
            await client.close()
    return seen


def quantile(values: list[float], share: float) -> float:
    """The value below which this share lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def figures(seen: Seen, batches: int, prompts: int) -> dict[str, float]:
    """What is printed. Latencies are milliseconds."""
    makespan = max(seen.last_s, default=float("nan"))
    return {
        "errors": seen.errors.total(),
        "lost": seen.lost,
        "doubled": seen.doubled,
        "status_requests": len(seen.status_s),
        "status_p50_ms": 1000 * quantile(seen.status_s, 0.5),
        "status_p99_ms": 1000 * quantile(seen.status_s, 0.99),
        "status_max_ms": 1000 * max(seen.status_s, default=float("nan")),
        "submit_p99_ms": 1000 * quantile(seen.submit_s, 0.99),
        "makespan_s": makespan,
        "trajectories_per_s": batches * prompts / makespan,
        "latest_first_share": max(seen.first_s, default=float("nan")) / makespan,
        "median_last_share": statistics.median(seen.last_s) / makespan if seen.last_s else float("nan"),
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
    with serving() as url:
        seen = asyncio.run(measure(url, options.clients, options.batches, options.prompts))
    for words, count in seen.errors.most_common(5):
        print(f"{count} x {words}", file=sys.stderr)
    found = figures(seen, options.batches, options.prompts)
    if options.json:
        print(json.dumps(found))
    else:
        print("\n".join(f"{name:20} {figure:12.3f}" for name, figure in found.items()))


if __name__ == "__main__":
    main()
