"""What came of simulations, as a table for people and as a document."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from statistics import fmean

from rich.console import Group
from rich.table import Table

from heddle.simulate.compare import Compared, Experiment, RunSummary
from heddle.simulate.statistics import Spread
from heddle.simulate.workload import Workload


def describe_experiment(experiment: Experiment, played: Workload, compared: Sequence[Compared]) -> Group:
    """Workload, notes, the table, the bound of the budget. ``played`` is the workload of the first seed."""
    notes = [f"  {note}" for note in played.notes]
    return Group(
        describe_workload(played),
        *notes,
        *run_notes([one.runs[0] for one in compared]),
        describe_bounds(experiment, compared),
        "",
        makespan_table(compared),
        "",
        cause_table(compared),
    )


def run_notes(runs: Sequence[RunSummary]) -> list[str]:
    """What these runs could not play as real ones would."""
    return [f"  {run.configuration}, seed {run.seed}: {note}" for run in runs for note in run.notes]


def describe_workload(played: Workload) -> str:
    """Its size in a line."""
    steps = sum(len(trajectory.steps) for trajectory in played.trajectories)
    groups = len({trajectory.group_id for trajectory in played.trajectories})
    return (
        f"{played.name}: {len(played.trajectories):,} trajectories in {groups:,} groups, {steps:,} steps, "
        f"{played.total_tokens:,} tokens"
    )


def describe_bounds(experiment: Experiment, compared: Sequence[Compared]) -> str:
    """What no pool can beat, over the seeds."""
    runs = compared[0].runs
    bounds = Spread.of([run.budget_bound.seconds for run in runs])
    longest = Spread.of([run.budget_bound.longest_s for run in runs])
    return (
        f"no pool of {experiment.hardware.gpus} GPUs ends this before {bounds.mean:,.1f} s; the longest "
        f"trajectory alone takes {longest.mean:,.1f} s"
    )


def makespan_table(compared: Sequence[Compared]) -> Table:
    """One line a configuration: means over seeds with 95 % intervals.

    Regret is the share above the bound of the configuration's own pool; ratios are speed over the first.
    """
    return _table(compared, _MAKESPAN, ("pool", lambda one: pools_of(one.runs)))


def cause_table(compared: Sequence[Compared]) -> Table:
    """Where the longest trajectory's time went, in seconds, and what was done twice: means over seeds."""
    return _table(compared, _CAUSES)


def _table(compared: Sequence[Compared], headings: Mapping[str, Cell], *words: tuple[str, Cell]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("configuration", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for heading, _ in words:
        table.add_column(heading, no_wrap=True)
    for one in compared:
        cells = [cell(one) for cell in headings.values()]
        table.add_row(one.configuration, *cells, *(cell(one) for _, cell in words))
    return table


def pools_of(runs: Sequence[RunSummary]) -> str:
    """The pool, or the first of several and how many others there were."""
    pools = list(dict.fromkeys(run.pool for run in runs))
    return pools[0] if len(pools) == 1 else f"{pools[0]}, or {len(pools) - 1} other"


def mean_of(one: Compared, figure: Callable[[RunSummary], float]) -> float:
    """Mean over seeds of one figure."""
    return fmean(figure(run) for run in one.runs)


Cell = Callable[[Compared], str]

_MAKESPAN: Mapping[str, Cell] = {
    "makespan (s)": lambda one: f"{one.makespan_s.mean:,.1f} ±{one.makespan_s.half_width:,.1f}",
    "worst": lambda one: f"{one.makespan_s.most:,.1f}",
    "to 90 %": lambda one: f"{mean_of(one, lambda run: run.time_to_90_s):,.1f}",
    "tokens/s": lambda one: f"{mean_of(one, lambda run: run.tokens_per_s):,.0f}",
    "regret": lambda one: f"{mean_of(one, lambda run: run.regret):.1%}",
    "ratio": lambda one: f"{one.speedup.mean:.2f} ±{one.speedup.half_width:.2f}",
    "least": lambda one: f"{one.speedup.least:.2f}",
}
_CAUSES: Mapping[str, Cell] = {
    "longest: queue (s)": lambda one: f"{mean_of(one, lambda run: run.longest_queue_s):,.1f}",
    "interference": lambda one: f"{mean_of(one, lambda run: run.longest_interference_s):,.1f}",
    "base": lambda one: f"{mean_of(one, lambda run: run.longest_base_s):,.1f}",
    "tokens prefilled": lambda one: f"{mean_of(one, lambda run: run.computed_tokens):,.0f}",
    "of them again": lambda one: f"{mean_of(one, lambda run: run.recomputed_tokens):,.0f}",
    "migrations": lambda one: f"{mean_of(one, lambda run: run.migrations):,.0f}",
    "preemptions": lambda one: f"{mean_of(one, lambda run: run.preemptions):,.0f}",
}


def experiment_document(
    experiment: Experiment, played: Workload, compared: Sequence[Compared]
) -> Mapping[str, object]:
    """The document of ``heddle simulate --json``."""
    return {
        "workload": workload_document(played),
        "gpus": experiment.hardware.gpus,
        "seeds": [run.seed for run in compared[0].runs],
        "configurations": [
            {
                "name": one.configuration,
                "settings": {
                    name: value for name, value in asdict(configuration.settings).items() if name != "profile"
                },
                "makespan_s": one.makespan_s,
                "speedup_over_first": one.speedup,
                "runs": [asdict(run) | {"regret": run.regret} for run in one.runs],
            }
            for configuration, one in zip(experiment.configurations, compared, strict=True)
        ],
    }


def workload_document(played: Workload) -> Mapping[str, object]:
    """Size and notes of a workload."""
    return {
        "name": played.name,
        "trajectories": len(played.trajectories),
        "groups": len({trajectory.group_id for trajectory in played.trajectories}),
        "steps": sum(len(trajectory.steps) for trajectory in played.trajectories),
        "tokens": played.total_tokens,
        "notes": list(played.notes),
    }
