"""Does it pay to turn idle workers into larger ones for a batch's last trajectories? Simulated.

    python benchmarks/elastic_tail.py [--traces DIR] [--only NAME,NAME] [--gpus 8] [--model Qwen3-14B]
                                      [--per-gpu 32] [--pools 1*,2*,4*,8*] [--starts 10,30,60]
                                      [--predictor oracle] [--seeds 3] [--max-context 120000]

Heddle's preset on every pool, each with the reshaper ``tail`` against without it (makespan without over that
with, mean over seeds / worst seed), for several seconds that a worker takes to start once its GPUs are free.
The first pool is up when the batch comes. Workloads, slots and step times as in ``never_worse.py``. The last
lines set the elastic pools against the fixed pool that is fastest in hindsight.

Assumed of starts on one machine with SGLang, weights in the page cache: 10 s would be a server that skips
CUDA graphs, 30 to 60 s is what one of 8B to 32B takes. Not measured here: there is no such machine.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from never_worse_cells import SAMPLES, SLOTS_PER_GPU, traces
from paper_tables import GPU
from played_traces import Trace

from heddle.control.build import PlaneSettings
from heddle.planning.shipped import shipped_profiles
from heddle.presets import find_preset
from heddle.simulate.compare import Experiment
from heddle.simulate.hardware import Hardware, hardware_from_profile
from heddle.simulate.result import SimulationResult
from heddle.simulate.sampling import Draw, SampleSource, mean_running_context
from heddle.simulate.simulator import simulate


@dataclass(frozen=True, slots=True)
class Runs:
    """One pool with one start time, or never reshaped; a run a seed."""

    pool: str
    start_s: float | None
    makespans_s: tuple[float, ...]
    reshaped: int
    """Seeds in which workers were started later than the first pool, and had GPUs before the end."""

    def over(self, other: Runs) -> tuple[float, float]:
        """``other``'s makespan over this one's: mean and worst seed."""
        ratios = [a / b for a, b in zip(other.makespans_s, self.makespans_s, strict=True)]
        return fmean(ratios), min(ratios)


def run(trace: Trace, pool: str, start_s: float | None, options: argparse.Namespace, gpus: int) -> Runs:
    """All seeds."""
    table = shipped_profiles()
    hardware = hardware_from_profile(
        table,
        gpus,
        gpu=GPU,
        model=options.model,
        slots_per_gpu=SLOTS_PER_GPU,
        start_s=start_s or 0.0,
    )
    settings = settings_of(trace, pool, hardware, options)
    if start_s is not None:
        settings = replace(settings, reshaper="tail", worker_start_s=start_s)
    experiment = Experiment(
        workload=trace.workload,
        hardware=hardware,
        configurations=(),
        draw=Draw(max(1, options.per_gpu * gpus // SAMPLES), SAMPLES, SampleSource.TRACE),
        tool_times=trace.tools,
    )
    results = [
        simulate(experiment.workload_of(seed), settings, hardware, seed=seed, configuration=pool)
        for seed in range(options.seeds)
    ]
    makespans_s = tuple(result.makespan_s for result in results)
    return Runs(pool, start_s, makespans_s, sum(was_reshaped(result) for result in results))


def settings_of(trace: Trace, pool: str, hardware: Hardware, options: argparse.Namespace) -> PlaneSettings:
    """Heddle's preset on workers that are spelled out."""
    base = PlaneSettings(
        slots_per_gpu=SLOTS_PER_GPU,
        predictor=options.predictor,
        profile=shipped_profiles().select(GPU, options.model, mean_running_context(trace.workload)),
        transfer_tokens_per_s=hardware.link.tokens_per_s,
    )
    return replace(find_preset("heddle").over(base), allocator="fixed", pool=pool)


def was_reshaped(result: SimulationResult) -> bool:
    """Whether a worker came later than the first pool, before the end."""
    return any(use.began_at is not None and 0.0 < use.began_at < result.makespan_s for use in result.workers)


def print_cell(name: str, runs: Sequence[Runs]) -> None:
    """Every pool, then the best of the elastic ones against the best fixed one."""
    fixed = {run.pool: run for run in runs if run.start_s is None}
    best = min(fixed.values(), key=lambda run: fmean(run.makespans_s))
    print(f"\n{name}")
    for pool, without in fixed.items():
        line = f"  {pool:12} {fmean(without.makespans_s):9,.1f} s "
        for elastic in runs:
            if elastic.pool == pool and elastic.start_s is not None:
                mean, worst = elastic.over(without)
                line += f"  {elastic.start_s:.0f} s: {mean:.3f}/{worst:.3f} ({elastic.reshaped})"
        print(line + ("   fastest" if without is best else ""))
    for start_s in sorted({run.start_s for run in runs if run.start_s is not None}):
        candidates = [run for run in runs if run.start_s == start_s]
        elastic = min(candidates, key=lambda run: fmean(run.makespans_s))
        mean, worst = elastic.over(best)
        print(f"  start {start_s:.0f} s: elastic {elastic.pool} is {mean:.3f}/{worst:.3f} of {best.pool}")


def main() -> None:
    """Run all cells, each printed as it is complete."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--only", default="", help="parts of traces' names")
    parser.add_argument("--gpus", default="8")
    parser.add_argument("--model", default="Qwen3-14B")
    parser.add_argument("--per-gpu", type=int, default=32)
    parser.add_argument("--pools", default="1*,2*,4*,8*")
    parser.add_argument("--starts", default="10,30,60")
    parser.add_argument("--predictor", default="oracle")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--max-context", type=int, default=120_000)
    options = parser.parse_args()
    starts = [None, *map(float, options.starts.split(","))]
    for trace in traces(options.traces, options.max_context):
        if not any(part in trace.name for part in options.only.split(",")):
            continue
        for gpus in map(int, options.gpus.split(",")):
            pools = options.pools.split(",")
            runs = [run(trace, pool, start_s, options, gpus) for pool in pools for start_s in starts]
            print_cell(f"{trace.name}, {options.model}, {gpus} GPUs, {options.per_gpu} a GPU", runs)


if __name__ == "__main__":
    main()
