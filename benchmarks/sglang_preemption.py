"""Who should preempt: an SGLang server by its priorities, or the coordinator by abort and resubmission.

    python benchmarks/sglang_preemption.py [--server DIR] [--repeats 7] [--generated 64 512 2048]

A real server (``scripts/sglang-cpu``, the tiny model) has two slots, both taken by generations that have
sampled ``--generated`` tokens when an urgent request arrives. *Native*: it is sent with a higher priority,
and the server retracts a generation and resumes it. *Coordinator*: a generation is aborted, the urgent one
sent, and the aborted one resubmitted with what it had when the urgent one is done. Either way the victim goes
on to its end.

Reported, as medians over repeats in which the two take turns: the urgent request's time to first token; what
the server computed again (prefill tokens beyond those of the prompts); and how much later than without any
urgent request the last generation ended. Times on a CPU say nothing about a GPU; tokens do.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx

from heddle.agent.ports import Generation, GenerationRequest, TokenChunk
from heddle.engines.sglang.adapter import SGLangEngine, SGLangSettings
from heddle.types import SamplingParams

ROOT = Path(__file__).resolve().parents[1]
PROMPT_TOKENS = 256
URGENT_PROMPT_TOKENS = 64
URGENT_TOKENS = 16
URGENT_RANK, ORDINARY_RANK = 1e5, 1.0
START_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One run: a mode, and what it cost."""

    mode: str
    generated: int
    first_token_s: float | None
    """Of the urgent request; ``None`` without one."""
    recomputed: int
    done_s: float
    """From the moment at which the urgent request arrives to the end of the last generation."""


class Bench:
    """Two adapters to one server: one that sends priorities, and one that does not."""

    def __init__(self, native: SGLangEngine, coordinator: SGLangEngine) -> None:
        self._native = native
        self._coordinator = coordinator
        self._numbers = itertools.count()

    async def run(self, mode: str, generated: int, rest: int) -> Sample:
        """One run on an empty prefix cache."""
        engine = self._native if mode == "native" else self._coordinator
        await engine.flush_cache()
        before = await self._prefilled()
        runners = [_Runner(engine, self._prompt(PROMPT_TOKENS), generated + rest) for _ in range(2)]
        for runner in runners:
            await runner.sampled(generated)
        arrived = time.monotonic()
        first_token_s = await self._urgent(mode, engine, runners[-1]) if mode != "undisturbed" else None
        for runner in runners:
            await runner.finish()
        done_s = time.monotonic() - arrived
        prompts = 2 * PROMPT_TOKENS + (URGENT_PROMPT_TOKENS if mode != "undisturbed" else 0)
        recomputed = await self._prefilled() - before - prompts
        return Sample(mode, generated, first_token_s, recomputed, done_s)

    async def _urgent(self, mode: str, engine: SGLangEngine, victim: _Runner) -> float:
        sent = time.monotonic()
        first = asyncio.Event()
        if mode == "coordinator":
            await victim.preempt()
        request = _request(self._prompt(URGENT_PROMPT_TOKENS), URGENT_TOKENS, URGENT_RANK)
        task = asyncio.create_task(engine.generate(request, lambda chunk: first.set()))
        await first.wait()
        first_token_s = time.monotonic() - sent
        await task
        if mode == "coordinator":
            victim.resubmit()
        return first_token_s

    async def _prefilled(self) -> int:
        """When the server is idle its report is up to date."""
        while True:
            [rank] = await self._native.loads()
            if rank.num_running_reqs == rank.num_waiting_reqs == 0:
                return rank.total_prefill_uncached_tokens
            await asyncio.sleep(0.02)

    def _prompt(self, tokens: int) -> list[int]:
        """Shares nothing with any other."""
        seed = next(self._numbers)
        return [3 + (seed * 389 + i * (2 * seed + 7)) % 1000 for i in range(tokens)]


class _Runner:
    """A generation that may be interrupted, and its count of tokens."""

    def __init__(self, engine: SGLangEngine, prompt: list[int], tokens: int) -> None:
        self._engine = engine
        self._prompt = prompt
        self._tokens = tokens
        self._sampled: list[int] = []
        self._progress = asyncio.Event()
        self._request = _request(prompt, tokens, ORDINARY_RANK)
        self._task = self._start()

    def _start(self) -> asyncio.Task[Generation]:
        return asyncio.create_task(self._engine.generate(self._request, self._note))

    def _note(self, chunk: TokenChunk) -> None:
        self._sampled += chunk.token_ids
        self._progress.set()

    async def sampled(self, tokens: int) -> None:
        while len(self._sampled) < tokens:
            self._progress.clear()
            await self._progress.wait()

    async def preempt(self) -> None:
        await self._engine.abort(self._request.request_id)
        await self._task

    def resubmit(self) -> None:
        left = self._tokens - len(self._sampled)
        assert left > 0, "the victim was done before it was preempted: this machine is too busy to measure"
        self._request = _request([*self._prompt, *self._sampled], left, ORDINARY_RANK)
        self._task = self._start()

    async def finish(self) -> None:
        await self._task
        assert len(self._sampled) == self._tokens


_request_numbers = itertools.count()


def _request(prompt: list[int], tokens: int, rank: float) -> GenerationRequest:
    return GenerationRequest(
        request_id=f"bench-{next(_request_numbers)}",
        prompt_ids=prompt,
        max_new_tokens=tokens,
        sampling=SamplingParams(temperature=0.0),
        priority=rank,
        ignore_end=True,
    )


# -------------------------------------------------------------------------------------------- server


@contextmanager
def started(home: Path) -> Iterator[str]:
    """A server of two slots; its address, until it has ended."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = [
        *("--model-path", str(home / "model" / "tiny"), "--skip-tokenizer-init"),
        *("--max-running-requests", "2", "--max-total-tokens", "16384", "--weight-version", "0"),
        *("--enable-priority-scheduling", "--priority-scheduling-preemption-threshold", "0"),
        *("--default-priority-value", "0", "--incremental-streaming-output"),
    ]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [home / "serve", str(port), *arguments], stdout=log, stderr=log, start_new_session=True
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _await_ready(url, process)
            yield url
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _await_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    give_up_at = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < give_up_at and process.poll() is None:
        try:
            if httpx.get(f"{url}/ready", timeout=5.0, trust_env=False).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.5)
    raise SystemExit("the server did not come up")


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Bench]:
    """Both adapters."""
    native = await SGLangEngine.connect(url, SGLangSettings(native_priority=True))
    coordinator = await SGLangEngine.connect(url)
    try:
        yield Bench(native, coordinator)
    finally:
        await native.close()
        await coordinator.close()


# -------------------------------------------------------------------------------------------- report

MODES = ("undisturbed", "native", "coordinator")


async def measure(url: str, generated: list[int], rest: int, repeats: int) -> list[Sample]:
    """All runs; the modes take turns, after one run of each that does not count."""
    samples: list[Sample] = []
    async with connected(url) as bench:
        for tokens in generated:
            for repeat in range(repeats + 1):
                for mode in MODES[repeat % 3 :] + MODES[: repeat % 3]:
                    sample = await bench.run(mode, tokens, rest)
                    print(sample, file=sys.stderr)
                    if repeat:
                        samples.append(sample)
    return samples


def report(samples: list[Sample]) -> None:
    """One line for each mode and length."""
    print("generated  mode         first token ms  computed again  last end later s")
    for generated in sorted({sample.generated for sample in samples}):
        base = _median(samples, generated, "undisturbed", lambda sample: sample.done_s)
        for mode in MODES[1:]:
            first = _median(samples, generated, mode, lambda sample: 1e3 * (sample.first_token_s or 0.0))
            again = _median(samples, generated, mode, lambda sample: float(sample.recomputed))
            later = _median(samples, generated, mode, lambda sample: sample.done_s) - base
            print(f"{generated:9}  {mode:11}  {first:14.1f}  {again:14.0f}  {later:16.2f}")


def _median(samples: list[Sample], generated: int, mode: str, value: Callable[[Sample], float]) -> float:
    return statistics.median(
        value(sample) for sample in samples if (sample.mode, sample.generated) == (mode, generated)
    )


def main() -> None:
    """Install, start, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--server", type=Path, help="where scripts/sglang-cpu installed one")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--generated", type=int, nargs="+", default=[64, 512, 2048])
    parser.add_argument("--rest", type=int, default=800, help="tokens left to those that run by then")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # the server must end with us
    installer = [ROOT / "scripts" / "sglang-cpu", *([options.server] if options.server else [])]
    home = Path(subprocess.run(installer, check=True, stdout=subprocess.PIPE, text=True).stdout.strip())
    with started(home) as url:
        samples = asyncio.run(measure(url, options.generated, options.rest, options.repeats))
    report(samples)
    if options.json:
        options.json.write_text(json.dumps([asdict(sample) for sample in samples], indent=1))


if __name__ == "__main__":
    main()
