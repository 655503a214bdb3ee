"""What the coordinator itself costs: thousands of trajectories on engines and tools that take no time.

    python benchmarks/coordinator.py [--trajectories 2000] [--steps 10] [--json]

Everything is real but the engine and the tool: the control plane, the agent loops, tokenising, the event
log and the SQLite journal, each step committed before its tools run. Two runs:

- *saturated*: generations take no time, so the coordinator is the bottleneck. Steps per second, seconds of
  CPU per step, memory per trajectory.
- *paced*: generations stream for as long as halves the rate. Added latency per step
  (cycle time minus generation and queue), and how late the event loop runs.

Ratios are against ``asyncio`` alone: a loop of the same number of tasks that only sleep.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import math
import os
import resource
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from heddle.agent.ports import Episode, GenerationRequest, Reward, ToolInvocation, ToolInvoker
from heddle.api.schemas import BatchRequest
from heddle.app import open_coordinator
from heddle.config import HeddleConfig, parse_config
from heddle.coordinator.assembly import EngineKit
from heddle.coordinator.service import Coordinator
from heddle.engines.fake import FakeEngine, FakeLauncher, FakeModel
from heddle.environments.base import ToolAnswer, ToolContext, ToolEnvironment
from heddle.records import Trajectory, decode_trajectory
from heddle.text.byte_tokenizer import TURN_END, ByteTokenizer
from heddle.tools.fake import FakeToolBackend, fake_result
from heddle.tools.ports import BackendResult, ToolBackend
from heddle.types import Json, Message, ToolCall, ToolSpec

LAG_TICK_S = 0.005
"""Between two looks at how late the loop is."""

CHUNK_TOKENS = 16
"""Tokens that a paced engine streams at once."""


def _output(repeats: int) -> list[int]:
    text = "forty two " * repeats
    call = f'<tool_call>\n{{"name": "echo", "arguments": {{"text": "{text}"}}}}\n</tool_call>'
    return [*call.encode(), TURN_END]


_OUTPUTS = [_output(repeats) for repeats in range(1, 5)]
MEAN_CHUNKS = sum(math.ceil(len(ids) / CHUNK_TOKENS) for ids in _OUTPUTS) / len(_OUTPUTS)


class EchoEnvironment(ToolEnvironment):
    """Every step calls one tool that answers at once; only ``max_steps`` ends an episode."""

    def __init__(self) -> None:
        text: dict[str, Json] = {"type": "string"}
        parameters: dict[str, Json] = {"type": "object", "properties": {"text": text}, "required": ["text"]}
        super().__init__("echo", (ToolSpec("echo", "Says it again.", parameters),))

    def opening(self, task: Mapping[str, Json]) -> tuple[Message, ...]:
        return (Message("user", "Say forty two, again and again."),)

    def backends(self) -> Sequence[ToolBackend]:
        return (FakeToolBackend(_say_again, name="echo", remember=False),)

    async def run_tool(self, call: ToolCall, context: ToolContext) -> ToolAnswer:
        result = await context.tools.invoke(call, backend="echo")
        return ToolAnswer(result.output)

    async def reward(self, episode: Episode, tools: ToolInvoker) -> Reward:
        return Reward(1.0)


def _say_again(invocation: ToolInvocation) -> BackendResult:
    return fake_result(str(invocation.payload["text"]))


def _write(request: GenerationRequest) -> Sequence[int]:
    """One of four lengths, so that generations do not all end together."""
    return _OUTPUTS[int(request.request_id[:4], 16) % len(_OUTPUTS)]


@dataclass(frozen=True, slots=True)
class Load:
    """What to run."""

    trajectories: int
    steps: int
    workers: int
    slots: int
    generation_s: float

    def config(self, data_dir: Path) -> HeddleConfig:
        pool = "+".join(["1"] * self.workers)
        return parse_config(
            {
                "data_dir": data_dir,
                "log_level": "warning",
                "engine": {"kind": "fake", "pool": pool, "slots": self.slots, "context_tokens": 1 << 20},
                "tools": {"concurrency": self.trajectories},
                "environments": {"echo": "__main__:EchoEnvironment"},
            }
        )

    def request(self) -> BatchRequest:
        limits = {"max_steps": self.steps, "max_tokens": 1 << 20, "max_tokens_per_step": 256}
        return BatchRequest.model_validate(
            {
                "environment": "echo",
                "prompts": [{"task": {}} for _ in range(self.trajectories // 8)],
                "samples_per_prompt": 8,
                "limits": limits,
            }
        )


@dataclass(frozen=True, slots=True)
class Measured:
    """One run, in seconds and bytes."""

    steps: int
    makespan_s: float
    steps_per_s: float
    cpu_ms_per_step: float
    lag_p50_ms: float
    lag_p99_ms: float
    added_ms_p50: float
    added_ms_p99: float
    kib_per_trajectory: float


class LagMeter:
    """How late a timer fires; the event loop's lag as any coroutine would feel it."""

    def __init__(self) -> None:
        self.lags: list[float] = []

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LAG_TICK_S
            await asyncio.sleep(LAG_TICK_S)
            self.lags.append(loop.time() - due)


async def run_batch(load: Load) -> Measured:
    """One batch from submission to its last record."""
    with tempfile.TemporaryDirectory() as folder:
        model = FakeModel(
            _write,
            end_of_turn_id=TURN_END,
            token_delay_s=load.generation_s / MEAN_CHUNKS,
            chunk_tokens=CHUNK_TOKENS,
        )
        launcher = FakeLauncher(model=model)
        kit = EngineKit(launcher, ByteTokenizer(), FakeEngine.capabilities, "echo")
        async with open_coordinator(load.config(Path(folder)), kit=kit) as coordinator:
            while not await coordinator.ready():
                await asyncio.sleep(0.01)
            return await _measure(coordinator, load)


async def _measure(coordinator: Coordinator, load: Load) -> Measured:
    gc.collect()
    before, peak = psutil.Process().memory_info().rss, 0
    meter = LagMeter()
    metering = asyncio.create_task(meter.run())
    started, cpu = time.perf_counter(), _cpu_s()
    status, _ = await coordinator.submit(load.request())
    while (await coordinator.batch(status.batch_id)).state == "running":
        peak = max(peak, psutil.Process().memory_info().rss)
        await asyncio.sleep(0.1)
    makespan, cpu = time.perf_counter() - started, _cpu_s() - cpu
    metering.cancel()
    records = await _records(coordinator, status.batch_id)
    steps = sum(len(record.steps) for record in records)
    added = [1e3 * ms for record in records for ms in _added_per_step(record, load.generation_s)]
    return Measured(
        steps=steps,
        makespan_s=makespan,
        steps_per_s=steps / makespan,
        cpu_ms_per_step=1e3 * cpu / steps,
        lag_p50_ms=1e3 * percentile(meter.lags, 50),
        lag_p99_ms=1e3 * percentile(meter.lags, 99),
        added_ms_p50=percentile(added, 50),
        added_ms_p99=percentile(added, 99),
        kib_per_trajectory=(peak - before) / load.trajectories / 1024,
    )


async def _records(coordinator: Coordinator, batch_id: str) -> list[Trajectory]:
    records: list[Trajectory] = []
    cursor: str | None = None
    while True:
        page = await coordinator.trajectories(batch_id, after=cursor, limit=500, wait_s=0.0)
        records += [decode_trajectory(record) for record in page.records]
        cursor = page.cursor
        if page.finished:
            return records


def _added_per_step(record: Trajectory, generation_s: float) -> Sequence[float]:
    """Per step, what it took beyond its generation and its queue for a slot (of a mean step)."""
    timing = record.timing
    generating = timing.prefill + timing.decode_base + timing.interference if generation_s > 0.0 else 0.0
    return [(timing.wall - timing.queue - generating) / len(record.steps)]


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def percentile(values: Sequence[float], q: float) -> float:
    """Nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * q / 100))]


async def bare_loop(tasks: int, delay_s: float, seconds: float) -> float:
    """99th percentile of the lag (ms) of a loop whose tasks only sleep: the floor of this machine."""
    meter = LagMeter()
    metering = asyncio.create_task(meter.run())
    until = time.perf_counter() + seconds

    async def sleeper() -> None:
        while time.perf_counter() < until:
            await asyncio.sleep(delay_s)

    await asyncio.gather(*(sleeper() for _ in range(tasks)))
    metering.cancel()
    return 1e3 * percentile(meter.lags, 99)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trajectories", type=int, default=2000, help="a multiple of 8")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--slots", type=int, default=16, help="per worker")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {0})
    base = Load(args.trajectories, args.steps, args.workers, args.slots, generation_s=0.0)
    saturated = asyncio.run(run_batch(base))
    pace_s = args.workers * args.slots / (0.5 * saturated.steps_per_s)
    paced_load = Load(args.trajectories, args.steps, args.workers, args.slots, generation_s=pace_s)
    paced = asyncio.run(run_batch(paced_load))
    floor_ms = asyncio.run(bare_loop(args.trajectories, pace_s, 5.0))
    report(base, saturated, paced, pace_s, floor_ms, as_json=args.json)


def report(
    load: Load, saturated: Measured, paced: Measured, pace_s: float, floor_ms: float, *, as_json: bool
) -> None:
    if as_json:
        runs = {"saturated": asdict(saturated), "paced": asdict(paced)}
        print(json.dumps({"load": asdict(load), **runs, "pace_s": pace_s, "bare_lag_p99_ms": floor_ms}))
        return
    slots = f"{load.workers} x {load.slots} slots"
    print(f"{load.trajectories} trajectories x {load.steps} steps, {slots}, one core")
    for name, run in (("saturated", saturated), (f"paced, {pace_s:.2f} s a generation", paced)):
        print(
            f"{name}: {run.steps_per_s:.0f} steps/s, {run.cpu_ms_per_step:.2f} ms CPU a step, "
            f"added per step p50 {run.added_ms_p50:.1f} ms p99 {run.added_ms_p99:.1f} ms, "
            f"loop lag p50 {run.lag_p50_ms:.1f} ms p99 {run.lag_p99_ms:.1f} ms, "
            f"{run.kib_per_trajectory:.1f} KiB a trajectory"
        )
    print(
        f"bare asyncio, same tasks only sleeping: loop lag p99 {floor_ms:.1f} ms "
        f"(ratio {paced.lag_p99_ms / max(floor_ms, 1e-3):.1f})"
    )


if __name__ == "__main__":
    main()
