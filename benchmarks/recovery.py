"""How soon a coordinator goes on after ``kill -9``, with many trajectories open.

    python benchmarks/recovery.py [--trajectories 1000] [--steps 8] [--repeats 5] [--json]

A coordinator in a process of its own commits this many steps of each trajectory and is killed while each of
them is in a tool that does not end. Then, on a copy of its data each time, another process is started: wall
seconds from its start, interpreter and imports included, until it opens the coordinator, until that accepts
work (everything open is restored by then), and until every trajectory is in its tool again; seconds of
processor time of all its threads until then, which a busy machine disturbs less. *Recovery* is from the
opening to the last trajectory's return. The same with a store without open trajectories, for comparison.

Beside it ``heddle serve`` itself, on copies of the same data: seconds from the start of the command until it
tells its URL, and until its REST surface answers that every trajectory is in its tool again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from chatter import speak

from heddle.api.schemas import BatchRequest
from heddle.app import open_coordinator
from heddle.config import HeddleConfig, parse_config
from heddle.coordinator.assembly import EngineKit
from heddle.coordinator.service import Coordinator
from heddle.engines.fake import FakeEngine, FakeLauncher, FakeModel
from heddle.garbage import young_only
from heddle.text.byte_tokenizer import TURN_END, ByteTokenizer

POLL_S = 0.01
CONTEXT_TOKENS = 1 << 20
DEADLINE_S = 300.0


@dataclass(frozen=True, slots=True)
class Load:
    """What is open when the coordinator dies."""

    trajectories: int
    steps: int
    """Committed by each."""

    def config(self, data_dir: Path) -> HeddleConfig:
        engine = {
            "kind": "fake",
            "pool": "1+1",
            "slots": max(1, self.trajectories),
            "context_tokens": CONTEXT_TOKENS,
        }
        return parse_config(
            {
                "data_dir": data_dir,
                "log_level": "error",
                "engine": engine,
                "environments": {"chatter": "chatter:ChatterEnvironment"},
            }
        )

    def batch(self) -> BatchRequest:
        tasks = [{"task": {"number": number, "steps": self.steps}} for number in range(self.trajectories)]
        return BatchRequest.model_validate(
            {
                "batch_id": "open",
                "environment": "chatter",
                "prompts": tasks,
                "limits": {"max_steps": 10_000, "max_tokens": 1 << 20, "max_tokens_per_step": 512},
            }
        )


def _kit() -> EngineKit:
    """Under the name of the engine that ``heddle serve`` has, which goes on with its trajectories."""
    model = FakeModel(speak, end_of_turn_id=TURN_END, context_tokens=CONTEXT_TOKENS)
    return EngineKit(FakeLauncher(model=model), ByteTokenizer(), FakeEngine.capabilities, "fake")


async def _until_all_are_in_tools(coordinator: Coordinator, load: Load) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while (await coordinator.batch("open")).by_phase != {"in_tool": load.trajectories}:
            await asyncio.sleep(POLL_S)


async def _run(load: Load, data_dir: Path, ready: Path) -> None:
    async with open_coordinator(load.config(data_dir), kit=_kit()) as coordinator:
        await coordinator.submit(load.batch())
        await _until_all_are_in_tools(coordinator, load)
        await asyncio.to_thread(ready.touch)
        await asyncio.Event().wait()


async def _reopen(load: Load, data_dir: Path) -> None:
    """Tell in lines what was reached; garbage is collected as in ``heddle serve``."""
    print("opens", flush=True)
    with young_only():
        await _reach(load, data_dir)


async def _reach(load: Load, data_dir: Path) -> None:
    async with open_coordinator(load.config(data_dir), kit=_kit()) as coordinator:
        print("accepts", flush=True)
        if load.trajectories:
            await _until_all_are_in_tools(coordinator, load)
        print("back", flush=True)
        print(time.process_time(), flush=True)


def _live(load: Load, data_dir: Path, ready: Path) -> None:
    """A coordinator that is there to be killed."""
    asyncio.run(_run(load, data_dir, ready))


def kill_one(load: Load, data_dir: Path) -> None:
    """Run a coordinator until all of the load is open, and kill it."""
    ready = data_dir.with_name("ready")
    process = multiprocessing.get_context("fork").Process(target=_live, args=(load, data_dir, ready))
    process.start()
    try:
        deadline = time.monotonic() + DEADLINE_S
        while not ready.exists():
            if time.monotonic() > deadline or not process.is_alive():
                raise SystemExit("the coordinator did not get so far")
            time.sleep(POLL_S)
    finally:
        process.kill()
        process.join()


@dataclass(frozen=True, slots=True)
class Opened:
    """Seconds from the start of the process."""

    opens_s: float
    accepts_s: float
    all_back_s: float
    processor_s: float

    @property
    def recovery_s(self) -> float:
        """What the process took besides starting."""
        return self.all_back_s - self.opens_s


def reopen(load: Load, data_dir: Path) -> Opened:
    """Start a process that opens a coordinator on this data."""
    command = [sys.executable, __file__, "--reopen", str(data_dir)]
    command += ["--trajectories", str(load.trajectories), "--steps", str(load.steps)]
    began = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        reached: dict[str, float] = {}
        for line in process.stdout:
            reached[line.strip()] = time.monotonic() - began
            if "back" in reached:
                break
        processor_s = float(process.stdout.readline())
    return Opened(reached["opens"], reached["accepts"], reached["back"], processor_s)


@dataclass(frozen=True, slots=True)
class Served:
    """Seconds from the start of ``heddle serve``."""

    announced_s: float
    """When it told its URL."""
    all_back_s: float
    """When its REST surface said that every trajectory is in its tool."""


def serve(load: Load, data_dir: Path) -> Served:
    """Start ``heddle serve`` on this data, ask it until all are back, and end it."""
    command = [sys.executable, "-m", "heddle", "serve", "--json", "--port", "0", "--data-dir", str(data_dir)]
    command += ["--engine", "fake", "--pool", "1+1", "--slots", str(load.trajectories)]
    for assignment in (
        "log_level=error",
        f"engine.context_tokens={CONTEXT_TOKENS}",
        "environments.chatter=chatter:ChatterEnvironment",
    ):
        command += ["--set", assignment]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    began = time.monotonic()
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        try:
            url = json.loads(process.stdout.readline())["url"]
            announced_s = time.monotonic() - began
            while _phases(url) != {"in_tool": load.trajectories}:
                if time.monotonic() - began > DEADLINE_S:
                    raise SystemExit("the server did not get so far")
                time.sleep(POLL_S)
            return Served(announced_s, time.monotonic() - began)
        finally:
            process.kill()


def _phases(url: str) -> object:
    with urllib.request.urlopen(f"{url}/v1/batches/open", timeout=DEADLINE_S) as answer:
        return json.load(answer)["by_phase"]


def measure(load: Load, repeats: int) -> dict[str, float]:
    """Medians over several openings."""
    with tempfile.TemporaryDirectory(prefix="heddle-recovery-") as base:
        killed = Path(base, "killed")
        kill_one(load, killed)
        opened, served = [], []
        for number in range(repeats):
            opened.append(reopen(load, Path(shutil.copytree(killed, Path(base, f"copy-{number}")))))
            served.append(serve(load, Path(shutil.copytree(killed, Path(base, f"served-{number}")))))
        empty = [reopen(Load(0, 0), Path(base, f"empty-{n}")) for n in range(repeats)]
        size = sum(path.stat().st_size for path in killed.glob("heddle.db*"))
    return {
        "trajectories": load.trajectories,
        "steps_each": load.steps,
        "store_mb": size / 1e6,
        "opens_s": statistics.median(one.opens_s for one in opened),
        "accepts_s": statistics.median(one.accepts_s for one in opened),
        "all_back_s": statistics.median(one.all_back_s for one in opened),
        "slowest_all_back_s": max(one.all_back_s for one in opened),
        "recovery_s": statistics.median(one.recovery_s for one in opened),
        "slowest_recovery_s": max(one.recovery_s for one in opened),
        "processor_s": statistics.median(one.processor_s for one in opened),
        "serve_announced_s": statistics.median(one.announced_s for one in served),
        "serve_all_back_s": statistics.median(one.all_back_s for one in served),
        "slowest_serve_all_back_s": max(one.all_back_s for one in served),
        "empty_accepts_s": statistics.median(one.accepts_s for one in empty),
        "empty_processor_s": statistics.median(one.processor_s for one in empty),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trajectories", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--reopen", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    load = Load(options.trajectories, options.steps)
    if options.reopen is not None:
        asyncio.run(_reopen(load, options.reopen))
        return
    figures = measure(load, options.repeats)
    if options.json:
        print(json.dumps(figures))
    else:
        print("\n".join(f"{name:20} {figure:10.3f}" for name, figure in figures.items()))


if __name__ == "__main__":
    main()
