"""What predictions are worth in makespan: simulated batches whose order goes by them, against first come.

    python benchmarks/predicted_makespans.py [--traces DIR] [--seeds 5] [--gpus 2] [--earlier 1] [--json FILE]

The shipped traces, and with ``--traces`` every ``*.jsonl(.gz)`` of a folder besides. Each seed halves the
prompts of a trace: the batch that is timed is drawn from one half, in groups of 16, 64 trajectories a GPU on
16 slots; tool times are drawn. Predictors: ``oracle`` (exact lengths), ``noisy`` (``noisy_oracle``, lengths
wrong by a factor of e^0.5), ``cold`` (``progressive`` that has seen nothing) and ``warm`` (``progressive``
after ``--earlier`` batches of the same size from the other half, first come, first served: none of their
prompts is in the timed batch). Both schedulers that go by length use each; placement is the same for all, on
workers of degree 1.

A cell is the makespan of first come, first served, over the one with this predictor, within each seed: the
mean and, after the slash, the worst seed; above 1 is faster. ``<`` marks cells that lose in the mean.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean, geometric_mean

from played_traces import Trace, load_traces

from heddle.cli.simulate import process_pool
from heddle.control.build import PlaneSettings, build_plane
from heddle.planning.shipped import shipped_profiles
from heddle.simulate.hardware import Hardware, hardware_from_profile
from heddle.simulate.options import SimulationOptions
from heddle.simulate.sampling import Draw, bootstrap
from heddle.simulate.simulator import make_world
from heddle.simulate.tool_times import with_tool_times
from heddle.simulate.workload import Workload
from heddle.types import JsonWritable

GPU, MODEL = "h100_sxm", "Qwen3-14B"
SLOTS = 16
SAMPLES = 16
GROUPS_PER_GPU = 4
LONGEST_CONTEXT = 65_536
"""Of traces that are not shipped; longer trajectories are left out."""
SCHEDULERS = ("progressive", "earned")
KNOWING: Mapping[str, PlaneSettings] = {
    "oracle": PlaneSettings(predictor="oracle"),
    "noisy": PlaneSettings(predictor="noisy_oracle", predictor_error=0.5),
}
LEARNING = PlaneSettings(predictor="progressive")
COLUMNS = (*KNOWING, "cold", "warm")


@dataclass(frozen=True, slots=True)
class Task:
    """One seed of one trace."""

    trace: Trace
    gpus: int
    earlier: int
    seed: int

    def workload(self, half: int, number: int) -> Workload:
        """A batch from one half of the prompts."""
        prompts = sorted({trajectory.group_id for trajectory in self.trace.workload.trajectories})
        random.Random(f"{self.trace.name}/{self.seed}").shuffle(prompts)
        chosen = set(prompts[half::2])
        trajectories = tuple(t for t in self.trace.workload.trajectories if t.group_id in chosen)
        draw = Draw(GROUPS_PER_GPU * self.gpus, SAMPLES, self.trace.source)
        stream = self.seed * (self.earlier + 1) + number
        drawn = bootstrap(replace(self.trace.workload, trajectories=trajectories), draw, stream)
        return with_tool_times(drawn, self.trace.tools, stream)

    def run(self) -> Ratios:
        """Every predictor under every scheduler."""
        hardware = hardware_from_profile(
            shipped_profiles(), self.gpus, gpu=GPU, model=MODEL, slots_per_gpu=SLOTS
        )
        timed = self.workload(0, 0)
        base, _ = play(timed, PlaneSettings(scheduler="fcfs"), hardware, self.seed)
        learned: JsonWritable = None
        for number in range(self.earlier):
            lesson = self.workload(1, 1 + number)
            _, learned = play(lesson, replace(LEARNING, scheduler="fcfs"), hardware, self.seed, learned)
        speedups: dict[str, float] = {}
        for scheduler in SCHEDULERS:
            learning = replace(LEARNING, scheduler=scheduler)
            seconds = {
                name: play(timed, replace(settings, scheduler=scheduler), hardware, self.seed)[0]
                for name, settings in KNOWING.items()
            }
            seconds["cold"], _ = play(timed, learning, hardware, self.seed)
            seconds["warm"], _ = play(timed, learning, hardware, self.seed, learned)
            speedups |= {f"{scheduler} {name}": base / taken for name, taken in seconds.items()}
        return Ratios(self.trace.name, self.seed, speedups)


@dataclass(frozen=True, slots=True)
class Ratios:
    """Makespan of first come over the others', by scheduler and predictor."""

    trace: str
    seed: int
    speedups: Mapping[str, float]


def play(
    workload: Workload,
    settings: PlaneSettings,
    hardware: Hardware,
    seed: int,
    learned: JsonWritable = None,
) -> tuple[float, JsonWritable]:
    """Makespan, and what the predictor knows at the end; it begins with ``learned``."""
    plane = build_plane(replace(settings, pool="1*", slots=SLOTS, seed=seed))
    if learned is not None:
        plane.predictor.restore(learned)
    world = make_world(plane, workload, hardware, SimulationOptions())
    world.run([trajectory.total_tokens for trajectory in workload.trajectories])
    return world.rollouts.makespan_s(), plane.predictor.save()


def describe(values: Sequence[float]) -> str:
    """Mean and worst, marked where the mean loses."""
    return f"{'<' if fmean(values) < 1.0 else ''}{fmean(values):.2f}/{min(values):.2f}"


def report(found: Sequence[Ratios]) -> str:
    """A line for each trace and scheduler, and what all traces give together."""
    lines = [f"{'':34}{'':12}" + "".join(f"{column:>12}" for column in COLUMNS)]
    traces = list(dict.fromkeys(one.trace for one in found))
    for trace, scheduler in product(traces, SCHEDULERS):
        cells = [
            describe([one.speedups[f"{scheduler} {column}"] for one in found if one.trace == trace])
            for column in COLUMNS
        ]
        lines.append(f"{trace:34}{scheduler:12}" + "".join(f"{cell:>12}" for cell in cells))
    for scheduler in SCHEDULERS:
        means = [geometric_mean(o.speedups[f"{scheduler} {column}"] for o in found) for column in COLUMNS]
        lines.append(f"{'geometric mean':34}{scheduler:12}" + "".join(f"{mean:>12.3f}" for mean in means))
    return "\n".join(lines)


def main() -> None:
    """Make the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--traces", type=Path, help="folder of *.jsonl(.gz), besides the shipped ones")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--earlier", type=int, default=1, help="batches that warm has learned from")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path, help="rewritten after each seed of each trace")
    options = parser.parse_args()
    traces = load_traces(None, 1.0)
    if options.traces is not None:
        traces += load_traces(options.traces, 1.0, LONGEST_CONTEXT)
    tasks = [
        Task(trace, options.gpus, options.earlier, seed)
        for seed, trace in product(range(options.seeds), traces)
    ]
    began = time.perf_counter()
    with process_pool(options.jobs) as pool:
        found = []
        for ratios in pool.map(Task.run, tasks):
            found.append(ratios)
            if options.json is not None:
                options.json.write_text(json.dumps([asdict(one) for one in found], indent=1))
    print(report(found))
    print(f"{options.seeds} seeds, {options.gpus} GPUs; {time.perf_counter() - began:,.0f} s")


if __name__ == "__main__":
    main()
