"""Is Heddle ever worse than the strongest simple way? Simulated, cell by cell, with the cells that it loses.

    python benchmarks/never_worse.py [--traces DIR] [--gpus 8] [--models Qwen3-14B] [--per-gpu 32,128]
                                     [--max-context 120000] [--seeds 3] [--ablations] [--json FILE]

The yardstick is ``sticky``: fewest residents, then pinned, first come, first served, without a memory guard,
on every homogeneous pool; per cell the one is chosen that is fastest in hindsight (mean over seeds), and the
pool of degree 1 is shown beside it. Heddle is its preset with its own workers, moves by transfer at the speed
of the simulated links, and predictions that are exact (``oracle``), learned on the way (``progressive``), or
nothing but noise (``noise``: off by a factor of e^3 and more for a third of all trajectories).

Workloads are drawn from recorded traces: the shipped ones as ``paper_tables.py`` has them, or every trace of
a folder, without trajectories above ``--max-context``, their tool times cut to a minute (some include people)
and drawn where they were not recorded. In groups of 8, slots 64 a GPU, shipped (modelled) H100 step times. A
cell is sticky's makespan over Heddle's, mean over seeds and worst seed. *Again* is Heddle's tokens that were
computed again over sticky's on its best pool, in tokens of all that was computed. *Regret* is the makespan
over a bound that nothing on this budget goes below.

``--ablations`` adds Heddle with one part replaced, with exact predictions unless it says otherwise.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, geometric_mean

from paper_tables import DEGREES, GPU, OTHER_TOOLS, Trace, load_traces

from heddle.control.build import PlaneSettings
from heddle.planning.shipped import shipped_profiles
from heddle.presets import find_preset
from heddle.simulate.compare import Configuration, Experiment, RunSummary, run_seed
from heddle.simulate.hardware import hardware_from_profile
from heddle.simulate.readers import read_workload
from heddle.simulate.sampling import (
    Draw,
    SampleSource,
    mean_running_context,
    with_tools_cut,
    within_context,
)
from heddle.simulate.tool_times import parse_tool_times

SLOTS_PER_GPU = 64
SAMPLES = 8
NOISE = 3.0
"""Standard deviation of the logarithm of the error's factor: a rank correlation of about 0.3."""
PREDICTIONS: Mapping[str, tuple[str, float]] = {
    "oracle": ("oracle", 0.0),
    "progressive": ("progressive", 0.0),
    "noise": ("noisy_oracle", NOISE),
}
MOST_TOOL_S = 60.0
WANTED = 0.98
"""What no cell and no seed should fall below."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One workload on one budget: all runs, a row a seed."""

    name: str
    runs: Mapping[str, Sequence[RunSummary]]

    def best_degree(self) -> int:
        """Of the homogeneous pool that is fastest for sticky in hindsight."""
        return min(self._degrees(), key=lambda degree: fmean(r.makespan_s for r in self.sticky(degree)))

    def sticky(self, degree: int) -> Sequence[RunSummary]:
        """The yardstick's runs on workers of this degree."""
        return self.runs[f"sticky@{degree}"]

    def ratios(self, configuration: str, degree: int) -> Sequence[float]:
        """Sticky's makespan over the configuration's, for each seed."""
        pairs = zip(self.sticky(degree), self.runs[configuration], strict=True)
        return [theirs.makespan_s / ours.makespan_s for theirs, ours in pairs]

    def again(self, configuration: str) -> float:
        """Tokens computed again, over sticky's on its best pool; 1.0 where neither did."""
        ours = sum(run.recomputed_tokens for run in self.runs[configuration])
        theirs = sum(run.recomputed_tokens for run in self.sticky(self.best_degree()))
        return ours / theirs if theirs else float(ours > 0) + 1.0

    def regret(self, configuration: str) -> float:
        """Makespan over the bound of the budget, mean over seeds."""
        return fmean(run.makespan_s / run.budget_bound.seconds for run in self.runs[configuration])

    def _degrees(self) -> list[int]:
        return [degree for degree in DEGREES if f"sticky@{degree}" in self.runs]


def traces(folder: Path | None, most_context: int) -> list[Trace]:
    """The shipped ones, or all of a folder."""
    if folder is None:
        return load_traces(None, 1.0)
    found = []
    for path in sorted([*folder.glob("*.jsonl"), *folder.glob("*.jsonl.gz")]):
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        name = path.name.partition(".jsonl")[0]
        workload = within_context(read_workload(content, name=name), most_context)
        cut = with_tools_cut(workload, MOST_TOOL_S)
        found.append(Trace(name, cut, parse_tool_times(OTHER_TOOLS), SampleSource.TRACE))
    return found


def configurations(base: PlaneSettings, gpus: int, ablations: bool) -> list[Configuration]:
    """The yardstick on every pool, Heddle with every prediction, and Heddle with parts replaced."""
    sticky, heddle = find_preset("sticky"), find_preset("heddle").over(base)
    made = [
        Configuration(f"sticky@{degree}", replace(sticky.over(base), pool=f"{degree}*"))
        for degree in DEGREES
        if degree <= gpus
    ]
    for name, (predictor, error) in PREDICTIONS.items():
        made.append(Configuration(name, replace(heddle, predictor=predictor, predictor_error=error)))
    if ablations:
        noisy = replace(heddle, predictor="noisy_oracle", predictor_error=NOISE)
        made += [
            Configuration("gated moves", replace(heddle, migration="gated")),
            Configuration("moves by rank", replace(heddle, migration="rank")),
            Configuration("placed by exact", replace(heddle, placer="exact")),
            Configuration("placed by presorted_dp", replace(heddle, placer="presorted_dp")),
            Configuration("placed as sticky", replace(heddle, placer="sticky_least_loaded")),
            Configuration("first come", replace(heddle, scheduler="fcfs")),
            Configuration("no memory guard", replace(heddle, kv_guard=False)),
            Configuration("noise, trusted", replace(noisy, scheduler="progressive", placer="presorted_dp")),
            Configuration("workers by exact", replace(heddle, allocator="exact")),
            Configuration("heddle-paper", find_preset("heddle-paper").over(base)),
        ]
    return made


def experiment_of(trace: Trace, model: str, gpus: int, per_gpu: int, ablations: bool) -> Experiment:
    """Everything that is run in one cell."""
    table = shipped_profiles()
    hardware = hardware_from_profile(table, gpus, gpu=GPU, model=model, slots_per_gpu=SLOTS_PER_GPU)
    link = hardware.link
    base = PlaneSettings(
        slots_per_gpu=SLOTS_PER_GPU,
        predictor="oracle",
        profile=table.select(GPU, model, mean_running_context(trace.workload)),
        transfer_tokens_per_s=link.bytes_per_s / link.kv_bytes_per_token,
    )
    return Experiment(
        workload=trace.workload,
        hardware=hardware,
        configurations=tuple(configurations(base, gpus, ablations)),
        draw=Draw(max(1, per_gpu * gpus // SAMPLES), SAMPLES, SampleSource.TRACE),
        tool_times=trace.tools,
    )


def run_cell(name: str, experiment: Experiment, seeds: int) -> Cell:
    """All seeds of one cell."""
    rows = [run_seed(experiment, seed) for seed in range(seeds)]
    names = [configuration.name for configuration in experiment.configurations]
    return Cell(name, dict(zip(names, zip(*rows, strict=True), strict=True)))


def print_cell(cell: Cell, took_s: float) -> None:
    """Every configuration of a cell, ``<`` where its worst seed falls below what is wanted."""
    best = cell.best_degree()
    seconds = fmean(run.makespan_s for run in cell.sticky(best))
    print(f"\n{cell.name}: sticky is fastest on degree {best}, {seconds:,.1f} s ({took_s:.0f} s to simulate)")
    for name in cell.runs:
        if name.startswith("sticky@"):
            continue
        ratios, to_one = cell.ratios(name, best), cell.ratios(name, 1)
        pools = sorted({run.pool for run in cell.runs[name]})
        lost = "<" if min(ratios) < WANTED else " "
        moves = fmean(run.migrations for run in cell.runs[name])
        print(
            f"  {name:24} {fmean(ratios):6.3f}/{min(ratios):5.3f} {lost}  degree 1: {fmean(to_one):6.2f}"
            f"  again {cell.again(name):.2f}  regret {cell.regret(name):.2f}  moves {moves:.0f}  {pools[0]}",
            flush=True,
        )


def print_summary(cells: Sequence[Cell]) -> None:
    """Over all cells: geometric means, the worst cell and seed, and how many are lost."""
    print("\nover all cells     best pool: mean  worst seed  cells below   degree 1: mean")
    for name in cells[0].runs:
        if name.startswith("sticky@"):
            continue
        means = [fmean(cell.ratios(name, cell.best_degree())) for cell in cells]
        worst = [min(cell.ratios(name, cell.best_degree())) for cell in cells]
        to_one = [fmean(cell.ratios(name, 1)) for cell in cells]
        lost = sum(ratio < WANTED for ratio in worst)
        print(
            f"{name:26} {geometric_mean(means):8.3f} {min(worst):11.3f} {lost:6} of {len(cells)}"
            f" {geometric_mean(to_one):16.2f}"
        )


def main() -> None:
    """Run all cells, print each as it is complete, then the summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--gpus", default="8")
    parser.add_argument("--models", default="Qwen3-14B")
    parser.add_argument("--per-gpu", default="32,128")
    parser.add_argument("--max-context", type=int, default=120_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--ablations", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    cells = []
    for trace in traces(options.traces, options.max_context):
        for model in options.models.split(","):
            for gpus in map(int, options.gpus.split(",")):
                for per_gpu in map(int, options.per_gpu.split(",")):
                    experiment = experiment_of(trace, model, gpus, per_gpu, options.ablations)
                    began = time.perf_counter()
                    name = f"{trace.name}, {model}, {gpus} GPUs, {per_gpu} a GPU"
                    cells.append(run_cell(name, experiment, options.seeds))
                    print_cell(cells[-1], time.perf_counter() - began)
    print_summary(cells)
    if options.json is not None:
        document = {c.name: {n: [asdict(r) for r in runs] for n, runs in c.runs.items()} for c in cells}
        options.json.write_text(json.dumps(document), encoding="utf-8")


if __name__ == "__main__":
    main()
