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
the trace than those that are measured.

Workloads are drawn from recorded traces: the shipped ones as ``paper_tables.py`` has them, or every trace of
a folder, without trajectories above ``--max-context``, their tool times cut to a minute (some include people)
and drawn where they were not recorded. In groups of 8, slots 64 a GPU, shipped (modelled) H100 step times. A
cell is sticky's makespan over Heddle's, mean over seeds and worst seed. *Again* is Heddle's tokens that were
computed again over sticky's on its best pool, in tokens of all that was computed. *Regret* is the makespan
over a bound that nothing on this budget goes below.

``--ablations`` adds Heddle with one part replaced, with exact predictions unless it says otherwise; the
yardstick with a memory guard on the rehearsed workers; and ``planned by drain``, which does not rehearse: it
has the workers that the preset plans from each seed's lengths, known exactly.

``--json`` gets a line for each seed of each cell as soon as it has been played, and what a file holds already
is not played again: an interrupted run goes on where it was. ``--rehearsals`` does the same for the choices.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, as_completed
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import TypeVar

from never_worse_cells import WARM, Cell, experiment_of, print_cell, print_summary, traces
from played_traces import Trace
from pydantic import TypeAdapter

from heddle.cli.simulate import process_pool
from heddle.presets import Choices
from heddle.rehearsal.race import Rehearsal, rehearse
from heddle.simulate.compare import Experiment, RunSummary, run_seed, teach

Row = TypeVar("Row")

LESSONS = (2_000_000, 2_000_001)
"""Draws that ``warm`` has learned from."""
REHEARSAL_SEED = 1_000_000
"""Of the first draw; measured are those from 0 on."""


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
        """Everything that is run, with nothing learned yet."""
        trace = _traces_of_process(self.folder, self.max_context)[self.trace]
        return experiment_of(trace, self.model, self.gpus, self.per_gpu, self.ablations, rehearsed)

    def taught(self, rehearsed: Choices) -> Experiment:
        """The same, and ``warm`` has had its lessons."""
        experiment = self.experiment(rehearsed)
        learned = _lessons_of_process(replace(self, ablations=False, seed=0), _CHOICES.dump_json(rehearsed))
        made = [replace(c, learned=learned) if c.name == WARM else c for c in experiment.configurations]
        return replace(experiment, configurations=tuple(made))

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
        runs = run_seed(self.taught(rehearsed), self.seed)
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
_CHOICES: TypeAdapter[Choices] = TypeAdapter(Choices)


@cache
def _traces_of_process(folder: Path | None, most_context: int) -> Mapping[str, Trace]:
    """Read once in each process."""
    return {trace.name: trace for trace in traces(folder, most_context)}


@cache
def _lessons_of_process(cell: Task, rehearsed: bytes) -> str | None:
    """What ``warm`` knows: learned once for all seeds of a cell in each process."""
    experiment = cell.experiment(_CHOICES.validate_json(rehearsed))
    (settings,) = (c.settings for c in experiment.configurations if c.name == WARM)
    return teach(experiment, settings, LESSONS)


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
    with process_pool(jobs) as pool:
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
