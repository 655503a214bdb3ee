"""Is Heddle ever worse than the strongest simple way? Simulated, cell by cell, with the cells that it loses.

    python benchmarks/never_worse.py [--traces DIR] [--gpus 8] [--models Qwen3-14B] [--per-gpu 32,128]
                                     [--max-context 120000] [--seeds 3] [--ablations]
                                     [--jobs 2] [--json FILE] [--rehearsals FILE]

The yardstick is ``sticky``: fewest residents, then pinned, first come, first served, without a memory guard,
on every homogeneous pool; per cell the one is chosen that is fastest in hindsight (mean over seeds), and the
pool of degree 1 is shown beside it. Heddle is its preset on workers that it rehearsed, moves by transfer at
the speed of the simulated links, and predictions that are exact (``oracle``), learned on the way
(``progressive``), or nothing but noise (``noise``: off by a factor of e^3 and more for a third of all
trajectories). ``warm`` is ``progressive`` that has learned from two earlier batches, of other draws from the
trace: the third batch of a training run. One rehearsal, with ``progressive``, chooses the workers for all
seeds of a cell and all predictions, and whether the preset or ``sticky`` runs on them: on other draws from
the trace than those that are measured. ``planned by drain`` has workers that the preset plans from each
seed's lengths, known exactly.

Workloads are drawn from recorded traces: the shipped ones as ``paper_tables.py`` has them, or every trace of
a folder, without trajectories above ``--max-context``, their tool times cut to a minute (some include people)
and drawn where they were not recorded. In groups of 8, slots 64 a GPU, shipped (modelled) H100 step times. A
cell is sticky's makespan over Heddle's, mean over seeds and worst seed. *Again* is Heddle's tokens that were
computed again over sticky's on its best pool, in tokens of all that was computed. *Regret* is the makespan
over a bound that nothing on this budget goes below.

``--ablations`` adds Heddle with one part replaced, with exact predictions unless it says otherwise.

``--json`` gets a line for each seed of each cell as soon as it has been played, and what a file holds already
is not played again: an interrupted run goes on where it was. ``--rehearsals`` does the same for the choices.
"""

from __future__ import annotations

import argparse
import gzip
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import TypeVar

from paper_tables import DEGREES, GPU
from played_traces import OTHER_TOOLS, Trace, load_traces
from pydantic import TypeAdapter

from heddle.control.build import PlaneSettings
from heddle.planning.shipped import shipped_profiles
from heddle.presets import Choices, find_preset
from heddle.rehearsal.race import Rehearsal, rehearse
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

Row = TypeVar("Row")

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
LESSONS = (2_000_000, 2_000_001)
"""Draws that ``warm`` has learned from."""
REHEARSAL_SEED = 1_000_000
"""Of the first draw; measured are those from 0 on."""
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

    Without ``rehearsed`` Heddle plans its workers.
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
    made.append(Configuration("warm", replace(heddle, predictor="progressive"), LESSONS))
    if rehearsed is not None:
        made.append(Configuration("planned by drain", replace(planned, predictor="progressive")))
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


@dataclass(frozen=True, slots=True)
class Task:
    """One seed of one cell, for a process of its own."""

    folder: Path | None
    trace: str
    model: str
    gpus: int
    per_gpu: int
    max_context: int
    ablations: bool
    seed: int

    @property
    def cell(self) -> str:
        """What its cell is called."""
        return f"{self.trace}, {self.model}, {self.gpus} GPUs, {self.per_gpu} a GPU"

    def experiment(self, rehearsed: Choices | None = None) -> Experiment:
        """Everything that is run."""
        trace = _traces_of_process(self.folder, self.max_context)[self.trace]
        return experiment_of(trace, self.model, self.gpus, self.per_gpu, self.ablations, rehearsed)

    def rehearse(self) -> Rehearsed:
        """What to run its cell on, whatever its seed."""
        began = time.process_time()
        experiment = self.experiment()
        (settings,) = (c.settings for c in experiment.configurations if c.name == "progressive")
        outcome = rehearse(Rehearsal(experiment, settings, seed=REHEARSAL_SEED))
        cpu_s = time.process_time() - began
        chosen = outcome.chosen.candidate
        return Rehearsed(self.cell, chosen.name, chosen.choices, outcome.gain, outcome.simulations, cpu_s)

    def play(self, rehearsed: Choices) -> Played:
        """All configurations, one after the other."""
        began = time.process_time()
        runs = run_seed(self.experiment(rehearsed), self.seed)
        return Played(self.cell, self.seed, time.process_time() - began, runs)


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """What a cell was found to be run best on: a line of the file."""

    cell: str
    name: str
    choices: Choices
    gain: float
    """Over the best candidate that looks at no length, in the rehearsal."""
    simulations: int
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Played:
    """What one seed of a cell gave: a line of the file."""

    cell: str
    seed: int
    cpu_s: float
    runs: tuple[RunSummary, ...]


_LINE: TypeAdapter[Played] = TypeAdapter(Played)
_REHEARSED: TypeAdapter[Rehearsed] = TypeAdapter(Rehearsed)


@cache
def _traces_of_process(folder: Path | None, most_context: int) -> Mapping[str, Trace]:
    """Read once in each process."""
    return {trace.name: trace for trace in traces(folder, most_context)}


def tasks_of(options: argparse.Namespace) -> list[Task]:
    """All seeds of all cells, cell by cell."""
    names = [trace.name for trace in traces(options.traces, options.max_context)]
    models = options.models.split(",")
    sizes, loads = map(int, options.gpus.split(",")), map(int, options.per_gpu.split(","))
    return [
        Task(options.traces, name, model, gpus, per_gpu, options.max_context, options.ablations, seed)
        for name, model, gpus, per_gpu, seed in product(names, models, sizes, loads, range(options.seeds))
    ]


def already_played(file: Path | None, tasks: Sequence[Task]) -> dict[tuple[str, int], Played]:
    """What a file of an earlier run holds of these tasks, with all of their configurations."""
    if file is None or not file.exists():
        return {}
    wanted = {name.name for name in tasks[0].experiment(Choices()).configurations}
    found = {}
    for line in file.read_bytes().splitlines():
        played = _LINE.validate_json(line)
        if wanted <= {run.configuration for run in played.runs}:
            found[played.cell, played.seed] = played
    return found


def rehearse_all(tasks: Sequence[Task], jobs: int, file: Path | None) -> Mapping[str, Choices]:
    """What to run each cell on."""
    lines = file.read_bytes().splitlines() if file is not None and file.exists() else []
    found = {row.cell: row for row in map(_REHEARSED.validate_json, lines)}
    missing = {task.cell: task for task in tasks if task.cell not in found}
    for row in _finished([task.rehearse for task in missing.values()], jobs):
        _append(file, _REHEARSED.dump_json(row))
        found[row.cell] = row
        cost = f"{row.simulations} simulations, {row.cpu_s:.0f} s of CPU time"
        print(f"{row.cell}: {row.name}, {row.gain:.3f} ({cost})", flush=True)
    return {cell: row.choices for cell, row in found.items()}


def play_all(
    tasks: Sequence[Task],
    rehearsed: Mapping[str, Choices],
    jobs: int,
    file: Path | None,
    tell: Callable[[Cell, float], None],
) -> list[Cell]:
    """Play what was not played yet. ``tell`` hears of each cell, and its CPU seconds, once it is complete."""
    played = already_played(file, tasks)
    seeds: dict[str, list[int]] = {}
    for task in tasks:
        seeds.setdefault(task.cell, []).append(task.seed)
    cells: dict[str, Cell] = {}

    def complete() -> None:
        for name, wanted in seeds.items():
            if name not in cells and all((name, seed) in played for seed in wanted):
                rows = [played[name, seed] for seed in wanted]
                cells[name] = _cell(name, rows)
                tell(cells[name], sum(row.cpu_s for row in rows))

    complete()
    missing = [task for task in tasks if (task.cell, task.seed) not in played]
    for row in _finished([partial(task.play, rehearsed[task.cell]) for task in missing], jobs):
        _append(file, _LINE.dump_json(row))
        played[row.cell, row.seed] = row
        complete()
    return [cells[name] for name in seeds]


def _finished(calls: Sequence[Callable[[], Row]], jobs: int) -> Iterator[Row]:
    """What they return, as it comes."""
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        pending: list[Future[Row]] = [pool.submit(call) for call in calls]
        for future in as_completed(pending):
            yield future.result()


def _append(file: Path | None, line: bytes) -> None:
    if file is not None:
        with file.open("ab") as lines:
            lines.write(line + b"\n")


def _cell(name: str, rows: Sequence[Played]) -> Cell:
    by_name = [{run.configuration: run for run in row.runs} for row in rows]
    return Cell(
        name, {configuration: [runs[configuration] for runs in by_name] for configuration in by_name[0]}
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
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rehearsals", type=Path)
    options = parser.parse_args()
    tasks = tasks_of(options)
    rehearsed = rehearse_all(tasks, options.jobs, options.rehearsals)
    print_summary(play_all(tasks, rehearsed, options.jobs, options.json, print_cell))


if __name__ == "__main__":
    main()
