"""How time and memory of a simulation grow with the number of trajectories.

    python benchmarks/simulator_growth.py [--sizes 100 400 1600 6400 25600] [--steps 20] [--json FILE]

A made-up workload: log-normal steps with a long tail, a tool after each, groups of 8 that share a prompt of
500 tokens. 100 trajectories for each GPU (64 GPUs at most), Qwen3-8B on H100 by the shipped profile, 64 slots
a GPU. Each size runs in a process of its own, so that its peak of memory is its own. One core, two to five
minutes for the default sizes. Prints, for each scheduler: events, seconds by the clock and of the processor,
microseconds of the processor per event, how many times faster than the rollout itself, the peak of memory.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from heddle.control.build import PlaneSettings
from heddle.planning.shipped import shipped_profiles
from heddle.simulate.hardware import hardware_from_profile
from heddle.simulate.simulator import simulate
from heddle.simulate.workload import Workload, WorkStep, WorkTrajectory
from heddle.types import GroupId, TrajectoryId

TRAJECTORIES_PER_GPU = 100
MOST_GPUS = 64
SLOTS_PER_GPU = 64
GROUP_SIZE = 8
PROMPT_TOKENS = 500
OBSERVED_TOKENS = 60


@dataclass(frozen=True, slots=True)
class Size:
    """One simulation to run."""

    scheduler: str
    trajectories: int
    steps: int
    seed: int


@dataclass(frozen=True, slots=True)
class Cost:
    """What it took."""

    scheduler: str
    trajectories: int
    steps: int
    gpus: int
    events: int
    wall_s: float
    cpu_s: float
    makespan_s: float
    peak_mb: float


def workload(size: Size) -> Workload:
    """Steps of about 250 tokens in the mean, tools of a second."""
    rng = random.Random(size.seed)
    return Workload(
        "made up",
        tuple(
            WorkTrajectory(
                TrajectoryId(f"t{index}"),
                GroupId(f"g{index // GROUP_SIZE}"),
                tuple(
                    WorkStep(
                        prompt_tokens=OBSERVED_TOKENS if step else PROMPT_TOKENS,
                        output_tokens=max(1, int(rng.lognormvariate(5.0, 1.0))),
                        tool_names=("python",),
                        tool_seconds=rng.expovariate(1.0),
                    )
                    for step in range(size.steps)
                ),
            )
            for index in range(size.trajectories)
        ),
    )


def measure(size: Size) -> Cost:
    """Run one simulation. The peak is of the whole process, interpreter and libraries included."""
    gpus = max(1, min(MOST_GPUS, size.trajectories // TRAJECTORIES_PER_GPU))
    hardware = hardware_from_profile(
        shipped_profiles(), gpus, gpu="h100_sxm", model="Qwen3-8B", slots_per_gpu=SLOTS_PER_GPU
    )
    work = workload(size)
    settings = PlaneSettings(scheduler=size.scheduler, predictor="oracle")
    began, cpu_began = time.perf_counter(), time.process_time()
    result = simulate(work, settings, hardware, seed=size.seed, configuration=size.scheduler)
    wall_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
    assert sum(outcome.generated_tokens for outcome in result.outcomes) == work.total_tokens
    unit = 1 if sys.platform == "darwin" else 1024
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
    return Cost(
        scheduler=size.scheduler,
        trajectories=size.trajectories,
        steps=size.steps,
        gpus=gpus,
        events=result.events,
        wall_s=wall_s,
        cpu_s=cpu_s,
        makespan_s=result.makespan_s,
        peak_mb=peak_mb,
    )


def line(cost: Cost) -> str:
    """One row of the table."""
    return (
        f"{cost.scheduler:12}{cost.trajectories:>13,}{cost.gpus:>6}{cost.events:>12,}{cost.wall_s:>9.2f}"
        f"{cost.cpu_s:>9.2f}{1e6 * cost.cpu_s / cost.events:>10.1f}{cost.makespan_s / cost.cpu_s:>13.1f}"
        f"{cost.peak_mb:>9.0f}"
    )


def run_all(sizes: Sequence[Size]) -> list[Cost]:
    """Each in a fresh process."""
    print(
        f"{'scheduler':12}{'trajectories':>13}{'GPUs':>6}{'events':>12}{'wall s':>9}{'cpu s':>9}"
        f"{'us/event':>10}{'x real time':>13}{'peak MB':>9}"
    )
    costs = []
    context = multiprocessing.get_context("spawn")
    for size in sizes:
        with context.Pool(1) as pool:
            costs.append(pool.apply(measure, (size,)))
        print(line(costs[-1]), flush=True)
    return costs


def main() -> None:
    """Print the table, and keep it in a file if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 400, 1600, 6400, 25_600])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--schedulers", nargs="+", default=["fcfs", "progressive"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    costs = run_all(
        [
            Size(scheduler, trajectories, options.steps, options.seed)
            for scheduler in options.schedulers
            for trajectories in options.sizes
        ]
    )
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(cost) for cost in costs], indent=1) + "\n")


if __name__ == "__main__":
    main()
