"""The paper's tables on recorded workloads: Heddle against others, each with every homogeneous pool.

    python benchmarks/paper_tables.py [--traces DIR] [--gpus 8] [--models NAME ...] [--quick] [--jobs 2]
                                      [--json FILE]

Without ``--traces`` the shipped traces: coding (``coding_agent``), search (``search_agent``) and math
(``math_agent``); with it every ``*.jsonl(.gz)`` of a folder. Each is played for three models on 8 GPUs (100
trajectories each, 50 slots) and on 64 (50 and 25), in groups of 16, drawn from the trace with replacement, at
shipped (modelled) H100 step times. Tool times are drawn: recorded ones include the wait for people.

*Together*: Heddle's preset against verl (``pinned``), verl* (``pinned_rebalance``), slime (``least_load``)
and ``sticky`` (the strongest open one), each on workers of degree 1 and on the homogeneous pool that is best
for it in hindsight. Heddle knows lengths exactly, or by ``noisy_oracle`` at two errors, chosen so that of the
longest fifth about 80 and about 60 % are among the predicted longest fifth; the recall is measured on the
predictions that the control plane makes. Its workers are planned for each seed's lengths, known exactly.
*Rehearsed* is what a user gets in the second batch: workers that a rehearsal chose on other draws from the
trace (``heddle rehearse``), lengths learned on the way (``progressive``) or known.

*Alone*: Heddle with one part replaced. Scheduling: ``fcfs``, ``round_robin``, ``autellix``. Placement:
``least_load``, ``pinned``. Resources: all workers of degree 1, all of degree 8.

A cell is the other's makespan over Heddle's, the mean over seeds and, after the slash, the worst seed; ``<``
marks cells that Heddle loses in the mean. *Headroom* is the other's makespan over a bound that nothing on
this budget goes below: no ratio can be larger. The paper measured a system; these are simulations, and its
lengths (reasoning models, up to 40,000 tokens) are not those of the traces.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, geometric_mean

from played_traces import Trace, load_traces

from heddle.cli.simulate import process_pool
from heddle.control.build import PlaneSettings, build_plane
from heddle.control.events import BatchSubmitted, PoolRequested, TrajectorySpec
from heddle.planning.shipped import shipped_profiles
from heddle.presets import find_preset
from heddle.rehearsal.race import DRAWS, Rehearsal, rehearse
from heddle.simulate.compare import Configuration, Experiment, RunSummary, run_seed
from heddle.simulate.hardware import hardware_from_profile
from heddle.simulate.sampling import (
    Draw,
    bootstrap,
    mean_running_context,
)
from heddle.simulate.workload import Workload
from heddle.types import BatchId

GPU = "h100_sxm"
MODELS = ("Qwen3-8B", "Qwen3-14B", "Qwen3-32B")
SIZES = (8, 64)
DEGREES = (1, 2, 4, 8)
TRAJECTORIES_PER_GPU: Mapping[int, int] = {8: 100, 64: 50}
"""By budget; twice as many as slots."""
SAMPLES = 16
BASELINES: Mapping[str, str] = {
    "verl": "verl",
    "verl*": "verl-rebalance",
    "slime": "slime",
    "sticky": "sticky",
}
PAPER_TOGETHER: Mapping[str, str] = {"verl": "1.4-2.3", "verl*": "1.1-2.4", "slime": "1.2-2.5", "sticky": "-"}
PARTS: Mapping[str, tuple[str, str]] = {
    "fcfs": ("scheduling", "1.1-1.26"),
    "round_robin": ("scheduling", "1.1-1.26"),
    "autellix": ("scheduling", "1.1-1.26"),
    "least_load": ("placement", "1.2-1.5"),
    "pinned": ("placement", "1.2-1.5"),
    "fix1": ("resources", "1.1-1.3"),
    "fix8": ("resources", "1.1-1.3"),
}
"""What stands in for a part of Heddle, the part, and the paper's range."""
RECALLS = (0.8, 0.6)
TAIL = 0.2
ORACLE = "oracle"
REHEARSED = "rehearsed"
REHEARSED_KNOWN = "rehearsed, lengths known"
LABELS = (ORACLE, *(f"recall {recall}" for recall in RECALLS), REHEARSED, REHEARSED_KNOWN)
"""Ways of Heddle."""
REHEARSAL_SEED = 1_000_000
"""Of its first draw; measured are those from 0 on."""


@dataclass(frozen=True, slots=True)
class Noise:
    """An error of predictions, and the recall that it has."""

    label: str
    error: float
    recall: float


@dataclass(frozen=True, slots=True)
class Cell:
    """One workload, model and budget: the runs of every configuration, a row a seed."""

    trace: str
    model: str
    gpus: int
    runs: Mapping[str, tuple[RunSummary, ...]]
    cpu_s: float

    def ratio(self, other: str, ours: str) -> tuple[float, float]:
        """Makespan of ``other`` over ours within each seed: mean and worst."""
        pairs = zip(self.runs[other], self.runs[ours], strict=True)
        ratios = [theirs.makespan_s / own.makespan_s for theirs, own in pairs]
        return fmean(ratios), min(ratios)

    def headroom(self, other: str) -> float:
        """Of ``other`` over the bound of the budget."""
        return fmean(run.makespan_s / run.budget_bound.seconds for run in self.runs[other])

    def longest_queue_s(self, name: str) -> float:
        """How long the longest trajectory waited, mean over seeds."""
        return fmean(run.longest_queue_s for run in self.runs[name])

    def best_degree(self, baseline: str) -> int:
        """The degree whose pool is fastest for a baseline, over all seeds."""
        means = {d: self._mean(f"{baseline}@{d}") for d in DEGREES if f"{baseline}@{d}" in self.runs}
        return min(means, key=means.__getitem__)

    def _mean(self, name: str) -> float:
        return fmean(run.makespan_s for run in self.runs[name])


def draw_for(trace: Trace, gpus: int) -> Draw:
    """Twice as many trajectories as slots."""
    return Draw(gpus * TRAJECTORIES_PER_GPU[gpus] // SAMPLES, SAMPLES, trace.source)


# ------------------------------------------------------------------------------------------ noise


def noises(trace: Trace) -> list[Noise]:
    """Errors for the wanted recalls, found by bisection on one draw."""
    workload = bootstrap(trace.workload, draw_for(trace, 8), seed=0)
    found = []
    for wanted in RECALLS:
        low, high = 0.0, 4.0
        for _ in range(12):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if tail_recall(workload, middle) > wanted else (low, middle)
        found.append(Noise(f"recall {wanted}", high, tail_recall(workload, high)))
    return found


def tail_recall(workload: Workload, error: float) -> float:
    """Which share of the longest fifth the control plane predicts to be in it."""
    plane = build_plane(PlaneSettings(predictor="noisy_oracle", predictor_error=error))
    plane.handle(PoolRequested(1), 0.0)
    specs = tuple(
        TrajectorySpec(t.trajectory_id, t.group_id, 1, 1 << 30, 1, known_total_tokens=t.total_tokens)
        for t in workload.trajectories
    )
    plane.handle(BatchSubmitted(BatchId("b"), specs), 0.0)
    predicted = {}
    for name, state in plane.state.trajectories.items():
        assert state.prediction is not None
        predicted[name] = state.prediction.remaining_tokens
    true = {t.trajectory_id: float(t.total_tokens) for t in workload.trajectories}
    size = max(1, round(TAIL * len(true)))
    longest = set(sorted(true, key=true.__getitem__)[-size:])
    return len(longest & set(sorted(predicted, key=predicted.__getitem__)[-size:])) / size


# ----------------------------------------------------------------------------------------- running


def experiment_of(trace: Trace, model: str, gpus: int, wrong: Sequence[Noise]) -> Experiment:
    """Everything that is run in one cell, but for what a rehearsal chooses."""
    table = shipped_profiles()
    hardware = hardware_from_profile(table, gpus, gpu=GPU, model=model)
    base = PlaneSettings(
        slots_per_gpu=TRAJECTORIES_PER_GPU[gpus] // 2,
        predictor="oracle",
        profile=table.select(GPU, model, mean_running_context(trace.workload)),
        transfer_tokens_per_s=hardware.link.tokens_per_s,
    )
    heddle = find_preset("heddle").over(base)
    configurations = [Configuration(ORACLE, heddle)]
    for noise in wrong:
        noisy = replace(heddle, predictor="noisy_oracle", predictor_error=noise.error)
        configurations.append(Configuration(noise.label, noisy))
    for name, preset in BASELINES.items():
        for degree in DEGREES:
            pool = find_preset(preset).over(replace(base, pool=f"{degree}*"))
            configurations.append(Configuration(f"{name}@{degree}", pool))
    for other, (part, _) in PARTS.items():
        if part == "scheduling":
            settings = replace(heddle, scheduler=other)
        elif part == "placement":
            settings = replace(heddle, placer=other, migration="none")
        else:
            settings = find_preset(other).over(base)
        configurations.append(Configuration(other, settings))
    return Experiment(
        workload=trace.workload,
        hardware=hardware,
        configurations=tuple(configurations),
        draw=draw_for(trace, gpus),
        tool_times=trace.tools,
    )


def with_rehearsed(experiment: Experiment, draws: int) -> Experiment:
    """Heddle besides on the workers, and in the way, that a rehearsal chooses: one for all seeds."""
    (planned,) = (c.settings for c in experiment.configurations if c.name == ORACLE)
    learning = replace(planned, predictor="progressive")
    rehearsal = Rehearsal(experiment, learning, draws=draws, seed=REHEARSAL_SEED)
    chosen = rehearse(rehearsal).chosen.candidate
    more = (
        Configuration(REHEARSED, chosen.over(learning)),
        Configuration(REHEARSED_KNOWN, chosen.over(planned)),
    )
    return replace(experiment, configurations=(*experiment.configurations, *more))


@dataclass(frozen=True, slots=True)
class Task:
    """One seed of one cell, for a process of its own."""

    trace: str
    model: str
    gpus: int
    experiment: Experiment
    seed: int

    def run(self) -> tuple[tuple[RunSummary, ...], float]:
        """The runs, and the CPU seconds that they took."""
        began = time.process_time()
        return run_seed(self.experiment, self.seed), time.process_time() - began


def run_all(tasks: Sequence[Task], jobs: int, tell: Callable[[Cell], None]) -> list[Cell]:
    """All tasks, cell by cell; ``tell`` hears of each cell as it is complete."""
    cells = []
    with process_pool(jobs) as pool:
        pending = [(task, pool.submit(task.run)) for task in tasks]
        rows: list[tuple[RunSummary, ...]] = []
        cpu_s = 0.0
        for index, (task, future) in enumerate(pending):
            of_seed, seconds = future.result()
            rows.append(of_seed)
            cpu_s += seconds
            following = pending[index + 1][0] if index + 1 < len(pending) else None
            if following is None or following.experiment is not task.experiment:
                names = [configuration.name for configuration in task.experiment.configurations]
                runs = dict(zip(names, zip(*rows, strict=True), strict=True))
                cells.append(Cell(task.trace, task.model, task.gpus, runs, cpu_s))
                tell(cells[-1])
                rows, cpu_s = [], 0.0
    return cells


# ------------------------------------------------------------------------------------------ tables


def describe_ratio(ratio: tuple[float, float]) -> str:
    """``1.32/1.28``, marked where the mean is below 1."""
    mean, worst = ratio
    return f"{'<' if mean < 1 else ''}{mean:.2f}/{worst:.2f}"


def print_trace(trace: Trace, wrong: Sequence[Noise]) -> None:
    """What is played, and how wrong predictions are."""
    print(f"{trace.name}: {len(trace.workload.trajectories):,} recorded; tools {trace.tools}")
    for note in trace.workload.notes:
        print(f"  {note}")
    for noise in wrong:
        print(f"  {noise.label}: error {noise.error:.2f}, measured recall {noise.recall:.2f}")


def print_together_header() -> None:
    """Above the lines of the first table, which come as cells are complete."""
    print("\nHeddle's preset against others: their makespan over Heddle's, mean/worst seed")
    columns = [f"{name} {pool}" for name in BASELINES for pool in ("tp1", "best")]
    print(f"{'':38}" + "".join(f"{column:>13}" for column in columns))
    print(f"{'the paper (64 GPUs)':38}" + "".join(f"{PAPER_TOGETHER[n]:>13}" * 2 for n in BASELINES))


def print_together(cell: Cell) -> None:
    """Heddle against the baselines: the pools, a line for each way of Heddle, and headroom."""
    pools = [(name, degree) for name in BASELINES for degree in (1, cell.best_degree(name))]
    title = f"{cell.trace[:14]}, {cell.model}, {cell.gpus} GPUs"
    best = "".join(f"{f'tp{degree}':>13}" for _, degree in pools)
    print(f"{title:38}{best}   Heddle: {cell.runs[ORACLE][0].pool}, rehearsed {cell.runs[REHEARSED][0].pool}")
    for label in LABELS:
        ratios = [describe_ratio(cell.ratio(f"{name}@{degree}", label)) for name, degree in pools]
        print(f"  {label:36}" + "".join(f"{ratio:>13}" for ratio in ratios))
    heads = [f"{cell.headroom(f'{name}@{degree}'):.2f}" for name, degree in pools]
    print(f"  {'headroom':36}" + "".join(f"{head:>13}" for head in heads), flush=True)


def print_alone(cells: Sequence[Cell]) -> None:
    """One part of Heddle replaced, three lines a cell."""
    print("\nOne part of Heddle replaced, lengths known: its makespan over Heddle's, mean/worst seed")
    print(f"{'':38}" + "".join(f"{other:>13}" for other in PARTS))
    print(f"{'replaces Heddle in':38}" + "".join(f"{part:>13}" for part, _ in PARTS.values()))
    print(f"{'the paper (64 GPUs)':38}" + "".join(f"{claim:>13}" for _, claim in PARTS.values()))
    for cell in cells:
        title = f"{cell.trace[:14]}, {cell.model}, {cell.gpus} GPUs"
        print(f"{title:38}" + "".join(f"{describe_ratio(cell.ratio(other, ORACLE)):>13}" for other in PARTS))
        print(f"  {'headroom':36}" + "".join(f"{cell.headroom(other):>13.2f}" for other in PARTS))
        queues = "".join(f"{cell.longest_queue_s(other):>13.1f}" for other in PARTS)
        print(f"  {f'queue of the longest (s), Heddle {cell.longest_queue_s(ORACLE):.1f}':36}{queues}")


def print_summary(cells: Sequence[Cell]) -> None:
    """Geometric means over all cells, and how many are lost."""
    print(
        f"\nover {len(cells)} cells{'geometric mean':>34}{'least':>8}{'most':>8}{'lost':>6}{'worst seed':>12}"
    )
    for label in LABELS:
        for name in BASELINES:
            for pool in ("tp1", "best"):
                others = [f"{name}@{1 if pool == 'tp1' else cell.best_degree(name)}" for cell in cells]
                ratios = [cell.ratio(other, label) for cell, other in zip(cells, others, strict=True)]
                _print_row(f"{name} {pool}, {label}", ratios)
    for other, (part, _) in PARTS.items():
        _print_row(f"{part}: {other}", [cell.ratio(other, ORACLE) for cell in cells])
    regrets = [run.regret for cell in cells for run in cell.runs[ORACLE]]
    print(f"Heddle above the bound of its own pool: mean {fmean(regrets):.1%}, most {max(regrets):.1%}")


def _print_row(title: str, ratios: Sequence[tuple[float, float]]) -> None:
    means, worst = [mean for mean, _ in ratios], min(least for _, least in ratios)
    lost = sum(mean < 1 for mean in means)
    figures = f"{geometric_mean(means):>16.3f}{min(means):>16.2f}{max(means):>16.2f}{lost:>16}{worst:>16.2f}"
    print(f"{title:32}{figures}")


def main() -> None:
    """Make all tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--traces", type=Path, help="folder of *.jsonl(.gz); the shipped traces without it")
    parser.add_argument("--seeds", type=int, default=4, help="on 8 GPUs")
    parser.add_argument("--large-seeds", type=int, default=2, help="on 64 GPUs")
    parser.add_argument("--gpus", type=int, nargs="+", choices=SIZES, default=SIZES)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--draws", type=int, default=DRAWS, help="of a rehearsal")
    parser.add_argument("--token-scale", type=float, default=1.0, help="sampled tokens times this")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--quick", action="store_true", help="one model, 8 GPUs, one seed")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    seeds = {8: options.seeds, 64: options.large_seeds}
    models, sizes = list(options.models), list(options.gpus)
    if options.quick:
        models, sizes, seeds = [MODELS[1]], [8], {8: 1}
    began, load = time.perf_counter(), os.getloadavg()[0]
    traces = load_traces(options.traces, options.token_scale)
    tasks = []
    for trace in traces:
        wrong = noises(trace)
        print_trace(trace, wrong)
        for model in models:
            for gpus in sizes:
                experiment = with_rehearsed(experiment_of(trace, model, gpus, wrong), options.draws)
                tasks += [Task(trace.name, model, gpus, experiment, seed) for seed in range(seeds[gpus])]
    tasks.sort(key=lambda task: task.gpus)
    for gpus in sizes:
        print(f"{gpus} GPUs: {gpus * TRAJECTORIES_PER_GPU[gpus]:,} trajectories, {seeds[gpus]} seeds")
    print_together_header()
    cells = run_all(tasks, options.jobs, print_together)
    print_alone(cells)
    print_summary(cells)
    cpu_s, spent = sum(cell.cpu_s for cell in cells), time.perf_counter() - began
    print(f"{spent:,.0f} s on {options.jobs} processes, {cpu_s:,.0f} s CPU")
    print(f"load of the machine: {load:.1f} before, {os.getloadavg()[0]:.1f} after")
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(cell) for cell in cells], indent=1))


if __name__ == "__main__":
    main()
