"""What it costs to bring a prefix from one embedded engine to another, and how much of it a tool call hides.

Two real engine processes with one thread each. For each length of prefix: a transfer in its parts (the source
gets the prefix into a slot and saves it, the target frees a slot and restores it) against the target that
computes the prefix itself, both idle and while each engine generates for somebody else. Then, for tool calls
of 0.1, 1 and 5 seconds, the share of either that lies within the call: all of it where it is done in time;
otherwise the coordinator breaks a transfer off, and who moves all the same waits for the rest. Last, what a
trajectory notices: the time from the end of such a tool call to the next token, when a transfer was begun
with the call (and broken off at its end if it was not done), and when none was; ``--only-stalls`` measures
nothing else.

Run it on a quiet machine: ``python benchmarks/embedded_migration.py``. Medians of ``--repeats``.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TypeVar

from heddle.agent.ports import GenerationRequest
from heddle.engines.embedded.adapter import EmbeddedEngine
from heddle.engines.embedded.exchange import KvExchange
from heddle.engines.embedded.launcher import EmbeddedLauncher
from heddle.engines.embedded.model import ensure_model
from heddle.engines.embedded.transfer import MAX_COMPUTED_TOKENS
from heddle.types import SamplingParams, WorkerId, WorkerSpec

T = TypeVar("T")

TOOL_SECONDS = (0.1, 1.0, 5.0)
OBSERVATION = 8
"""Tokens that a tool answers with."""
GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True, slots=True)
class Parts:
    """One transfer: seconds of its parts, and bytes."""

    find_s: float
    save_s: float
    clear_s: float
    restore_s: float
    nbytes: int

    @property
    def total_s(self) -> float:
        return self.find_s + self.save_s + self.clear_s + self.restore_s


@dataclass(frozen=True, slots=True)
class Return:
    """What followed a tool call."""

    wait_s: float
    """From the end of the tools to the next token."""
    moved: bool


class Bench:
    """Two engines, and prefixes that no other resembles."""

    def __init__(self, source: EmbeddedEngine, target: EmbeddedEngine, files: KvExchange) -> None:
        self.source, self.target = source, target
        self._files = files
        self._seeds = count(1)

    async def prefix(self, tokens: int) -> list[int]:
        """Computed at the source."""
        ids = self.fresh(tokens)
        await self.source.warm_prefix(ids)
        return ids

    def fresh(self, tokens: int) -> list[int]:
        return random.Random(next(self._seeds)).choices(range(100, 40_000), k=tokens)

    async def transfer(self, ids: Sequence[int]) -> Parts:
        """What ``Engine.transfer`` does, with a look at the clock between its parts."""
        with self._files.file(1) as name:
            held, find_s = await timed(self.source.hold(ids, lacking_at_most=MAX_COMPUTED_TOKENS))
            saved, save_s = await timed(self.source.save_slot(held.slot, name))
            place, clear_s = await timed(self.target.hold(ids[-1:], lacking_at_most=1))
            _, restore_s = await timed(self.target.restore_slot(place.slot, name))
        return Parts(find_s, save_s, clear_s, restore_s, saved.nbytes)

    async def after_tools(self, tokens: int, tool_s: float, *, move: bool) -> Return:
        """As the coordinator has it: the next step is where the prefix is, and waits for no transfer."""
        ids = await self.prefix(tokens)
        copying = asyncio.create_task(self.source.transfer(ids, self.target)) if move else None
        await asyncio.sleep(tool_s)
        moved = copying is not None and copying.done()
        if copying is not None:
            copying.cancel()
        request = GenerationRequest(
            f"next-{next(self._seeds)}", [*ids, *self.fresh(OBSERVATION)], 1, GREEDY, deadline_s=3600.0
        )
        engine = self.target if moved else self.source
        _, wait_s = await timed(engine.generate(request, lambda chunk: None))
        if copying is not None:
            await asyncio.gather(copying, return_exceptions=True)
        return Return(wait_s, moved)

    @asynccontextmanager
    async def busy(self) -> AsyncIterator[None]:
        """Each engine generates for another trajectory meanwhile."""
        begun = [asyncio.Event(), asyncio.Event()]
        others = [
            asyncio.create_task(self._generate(engine, event))
            for engine, event in zip((self.source, self.target), begun, strict=True)
        ]
        for event in begun:
            await event.wait()
        try:
            yield
        finally:
            for other in others:
                other.cancel()
            await asyncio.gather(*others, return_exceptions=True)

    async def _generate(self, engine: EmbeddedEngine, begun: asyncio.Event) -> None:
        request = GenerationRequest(
            f"busy-{next(self._seeds)}", self.fresh(8), 3000, GREEDY, ignore_end=True, deadline_s=3600.0
        )
        await engine.generate(request, lambda chunk: begun.set())


async def timed(work: Awaitable[T]) -> tuple[T, float]:
    began = time.perf_counter()
    result = await work
    return result, time.perf_counter() - began


async def measure(bench: Bench, tokens: int, repeats: int) -> tuple[Parts, float]:
    """Medians: a transfer in parts, and the target's own computation of as many tokens."""
    parts = [await bench.transfer(await bench.prefix(tokens)) for _ in range(repeats)]
    computed = [(await timed(bench.target.warm_prefix(bench.fresh(tokens))))[1] for _ in range(repeats)]
    middle = sorted(parts, key=lambda each: each.total_s)[len(parts) // 2]
    return middle, statistics.median(computed)


def hidden(seconds: float, tool_s: float) -> str:
    share = min(1.0, tool_s / seconds)
    return f"{share:5.0%} of {seconds:6.2f} s"


async def stalls(bench: Bench, tokens: int, repeats: int) -> None:
    """Interleaved, so that what else the machine does meets both alike."""
    print(f"\nfrom the end of the tools to the next token, for a prefix of {tokens} tokens")
    for tool_s in TOOL_SECONDS:
        moving, staying = [], []
        for _ in range(repeats):
            moving.append(await bench.after_tools(tokens, tool_s, move=True))
            staying.append(await bench.after_tools(tokens, tool_s, move=False))
        waits = [statistics.median(one.wait_s for one in some) for some in (moving, staying)]
        moved = sum(one.moved for one in moving)
        print(
            f"tool {tool_s:4g} s   with a transfer {waits[0]:6.2f} s (done in time {moved} of {repeats})   "
            f"without {waits[1]:6.2f} s"
        )


def report(label: str, tokens: int, parts: Parts, computed_s: float) -> None:
    per_k = 1000.0 / tokens
    print(
        f"{label:5} {tokens:6} {parts.nbytes / 1e6:8.1f} {parts.find_s * 1e3 * per_k:8.1f} "
        f"{parts.save_s * 1e3 * per_k:8.1f} {parts.clear_s * 1e3 * per_k:8.1f} "
        f"{parts.restore_s * 1e3 * per_k:8.1f} {parts.total_s * per_k:9.3f} {computed_s * per_k:11.2f} "
        f"{computed_s / parts.total_s:8.0f}x {tokens / parts.total_s:10.0f}"
    )


async def run(lengths: Sequence[int], repeats: int, *, only_stalls: bool) -> None:
    model = await asyncio.to_thread(ensure_model, "smollm2-135m-instruct")
    launcher = EmbeddedLauncher(model, context_tokens=max(lengths) + 1024, ready_timeout_s=120.0)
    with tempfile.TemporaryDirectory() as logs:
        workers = [
            await launcher.launch(WorkerSpec(WorkerId(name), 1, 2), Path(logs) / f"{name}.log")
            for name in ("source", "target")
        ]
        exchange = workers[0].engine.exchange
        assert exchange is not None
        bench = Bench(workers[0].engine, workers[1].engine, exchange.files)
        try:
            if not only_stalls:
                await compare(bench, lengths, repeats)
            await stalls(bench, lengths[0], repeats)
        finally:
            for worker in workers:
                await worker.stop()


async def compare(bench: Bench, lengths: Sequence[int], repeats: int) -> None:
    print(
        "per 1,000 tokens   MB     find ms  save ms clear ms  rest. ms   total s  computed s   ratio tokens/s"
    )
    for tokens in lengths:
        report("idle", tokens, *await measure(bench, tokens, repeats))
    async with bench.busy():
        report("busy", lengths[0], *await measure(bench, lengths[0], repeats))
    tokens = 1000
    parts, computed_s = await measure(bench, tokens, repeats)
    print(f"\nhidden by a tool call, for a prefix of {tokens} tokens")
    for tool_s in TOOL_SECONDS:
        print(
            f"tool {tool_s:4g} s   transfer {hidden(parts.total_s, tool_s)}   "
            f"re-prefill {hidden(computed_s, tool_s)}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[500, 1000, 2000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only-stalls", action="store_true")
    options = parser.parse_args()
    asyncio.run(run(options.lengths, options.repeats, only_stalls=options.only_stalls))


if __name__ == "__main__":
    main()
