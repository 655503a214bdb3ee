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

from reopened import CONTEXT_TOKENS, DEADLINE_S, POLL_S, Load, kit, until_all_are_in_tools

from heddle.app import open_coordinator


async def _run(load: Load, data_dir: Path, ready: Path) -> None:
    async with open_coordinator(load.config(data_dir), kit=kit()) as coordinator:
        await coordinator.submit(load.batch())
        await until_all_are_in_tools(coordinator, load)
        await asyncio.to_thread(ready.touch)
        await asyncio.Event().wait()


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
    command = [sys.executable, str(Path(__file__).with_name("reopened.py"))]
    command += [str(data_dir), str(load.trajectories), str(load.steps)]
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
    options = parser.parse_args()
    load = Load(options.trajectories, options.steps)
    figures = measure(load, options.repeats)
    if options.json:
        print(json.dumps(figures))
    else:
        print("\n".join(f"{name:20} {figure:10.3f}" for name, figure in figures.items()))


if __name__ == "__main__":
    main()
