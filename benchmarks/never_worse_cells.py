"""The cells of ``never_worse.py``: what is run in one, and how it compares."""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, geometric_mean

from paper_tables import DEGREES, GPU
from played_traces import OTHER_TOOLS, Trace, load_traces

from heddle.control.build import PlaneSettings
from heddle.planning.shipped import shipped_profiles
from heddle.presets import Choices, find_preset
from heddle.simulate.compare import Configuration, Experiment, RunSummary
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
START_S = 30.0
"""Of a worker that is started beside a batch; the first pool is up when it comes. Assumed."""
NOISE = 3.0
"""Standard deviation of the logarithm of the error's factor: a rank correlation of about 0.3."""
PREDICTIONS: Mapping[str, tuple[str, float]] = {
    "oracle": ("oracle", 0.0),
    "progressive": ("progressive", 0.0),
    "noise": ("noisy_oracle", NOISE),
}
WARM = "warm"
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


def configurations(
    base: PlaneSettings, gpus: int, ablations: bool, rehearsed: Choices | None
) -> list[Configuration]:
    """The yardstick on every pool, Heddle with every prediction, and Heddle with parts replaced.

    Without ``rehearsed`` Heddle plans its workers. ``warm`` has learned nothing here.
    """
    sticky, planned = find_preset("sticky"), find_preset("heddle").over(base)
    heddle = planned if rehearsed is None else replace(planned, **rehearsed)
    made = [
        Configuration(f"sticky@{degree}", replace(sticky.over(base), pool=f"{degree}*"))
        for degree in DEGREES
        if degree <= gpus
    ]
    for name, (predictor, error) in PREDICTIONS.items():
        made.append(Configuration(name, replace(heddle, predictor=predictor, predictor_error=error)))
    made.append(Configuration(WARM, replace(heddle, predictor="progressive")))
    if ablations:
        noisy = replace(heddle, predictor="noisy_oracle", predictor_error=NOISE)
        simple = replace(sticky.over(base), allocator=heddle.allocator, pool=heddle.pool)
        made += [
            Configuration("sticky, guarded", replace(simple, kv_guard=True)),
            Configuration("planned by drain", replace(planned, predictor="progressive")),
            Configuration("gated moves", replace(heddle, migration="gated")),
            Configuration("moves by rank", replace(heddle, migration="rank")),
            Configuration("moves by replan", replace(heddle, migration="replan")),
            Configuration("placed by exact", replace(heddle, placer="exact")),
            Configuration("placed by presorted_dp", replace(heddle, placer="presorted_dp")),
            Configuration("placed as sticky", replace(heddle, placer="sticky_least_loaded")),
            Configuration("first come", replace(heddle, scheduler="fcfs")),
            Configuration("no memory guard", replace(heddle, kv_guard=False)),
            Configuration("noise, trusted", replace(noisy, scheduler="progressive", placer="presorted_dp")),
            Configuration("workers by exact", replace(heddle, allocator="exact")),
            Configuration("heddle-paper", find_preset("heddle-paper").over(base)),
            Configuration("elastic", replace(heddle, reshaper="tail")),
            Configuration("degree 1", replace(heddle, allocator="fixed", pool="1*")),
            Configuration(
                "degree 1, elastic", replace(heddle, allocator="fixed", pool="1*", reshaper="tail")
            ),
        ]
    return made


def experiment_of(
    trace: Trace,
    model: str,
    gpus: int,
    per_gpu: int,
    ablations: bool = False,
    rehearsed: Choices | None = None,
) -> Experiment:
    """Everything that is run in one cell."""
    table = shipped_profiles()
    hardware = hardware_from_profile(
        table, gpus, gpu=GPU, model=model, slots_per_gpu=SLOTS_PER_GPU, start_s=START_S
    )
    link = hardware.link
    base = PlaneSettings(
        slots_per_gpu=SLOTS_PER_GPU,
        predictor="oracle",
        profile=table.select(GPU, model, mean_running_context(trace.workload)),
        transfer_tokens_per_s=link.tokens_per_s,
        worker_start_s=START_S,
    )
    return Experiment(
        workload=trace.workload,
        hardware=hardware,
        configurations=tuple(configurations(base, gpus, ablations, rehearsed)),
        draw=Draw(max(1, per_gpu * gpus // SAMPLES), SAMPLES, SampleSource.TRACE),
        tool_times=trace.tools,
    )


def print_cell(cell: Cell, cpu_s: float) -> None:
    """Every configuration of a cell, ``<`` where its worst seed falls below what is wanted."""
    best = cell.best_degree()
    seconds = fmean(run.makespan_s for run in cell.sticky(best))
    print(f"\n{cell.name}: sticky is fastest on degree {best}, {seconds:,.1f} s ({cpu_s:.0f} s of CPU time)")
    for name in cell.runs:
        if name.startswith("sticky@"):
            continue
        ratios, to_one = cell.ratios(name, best), cell.ratios(name, 1)
        pools = ", ".join(dict.fromkeys(run.pool for run in cell.runs[name]))
        lost = "<" if min(ratios) < WANTED else " "
        moves = fmean(run.migrations for run in cell.runs[name])
        print(
            f"  {name:24} {fmean(ratios):6.3f}/{min(ratios):5.3f} {lost}  degree 1: {fmean(to_one):6.2f}"
            f"  again {cell.again(name):.2f}  regret {cell.regret(name):.2f}  moves {moves:.0f}  {pools}",
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
