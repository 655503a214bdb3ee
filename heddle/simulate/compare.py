"""Configurations against each other: the same workload and tool times for all of them, seed by seed.

Every seed draws one workload; all configurations play that one, so that what differs between two of them in
one seed is theirs. Ratios are taken within a seed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from heddle.allocation import SlotRule
from heddle.control.build import PlaneSettings, build_plane
from heddle.simulate.bounds import Bound, budget_bound, pool_bound
from heddle.simulate.hardware import Hardware
from heddle.simulate.options import SimulationOptions
from heddle.simulate.result import SimulationResult, WorkerUse
from heddle.simulate.sampling import Draw, bootstrap
from heddle.simulate.simulator import make_world, simulate
from heddle.simulate.statistics import Spread
from heddle.simulate.tool_times import ToolTimes, require_tool_times, with_tool_times
from heddle.simulate.workload import Workload
from heddle.types import WorkerSpec


@dataclass(frozen=True, slots=True)
class Configuration:
    """A name for settings."""

    name: str
    settings: PlaneSettings
    learned: str | None = None
    """What the predictor knows at the start, as :func:`teach` returns it."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """What is compared on what."""

    workload: Workload
    """As it was read; seeds draw from it."""
    hardware: Hardware
    configurations: tuple[Configuration, ...]
    draw: Draw | None = None
    """``None``: the workload as it is."""
    tool_times: ToolTimes | None = None
    """For times that were not recorded."""
    options: SimulationOptions = field(default_factory=SimulationOptions)

    def workload_of(self, seed: int) -> Workload:
        """What all configurations play. Raises ``InvalidRequest`` where a tool time stays unknown."""
        workload = self.workload if self.draw is None else bootstrap(self.workload, self.draw, seed)
        if self.tool_times is not None:
            workload = with_tool_times(workload, self.tool_times, seed)
        require_tool_times(workload)
        return workload


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One simulation in figures; those of the longest trajectory have its name."""

    configuration: str
    seed: int
    makespan_s: float
    time_to_90_s: float
    tokens_per_s: float
    longest_tokens: int
    longest_queue_s: float
    """Waiting for a slot or memory, after preemptions too."""
    longest_interference_s: float
    longest_base_s: float
    computed_tokens: int
    recomputed_tokens: int
    preemptions: int
    migrations: int
    pool: str
    bound: Bound
    """For the pool of this run."""
    budget_bound: Bound
    """For every pool of the budget, and as many preemptions as any of the configurations may make."""
    notes: tuple[str, ...]
    """What the run itself could not play as a real one would."""

    @property
    def regret(self) -> float:
        """By what share of its bound the makespan exceeds it; 0.0 cannot be improved on this pool."""
        return self.makespan_s / self.bound.seconds - 1.0 if self.bound.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Compared:
    """One configuration over all seeds."""

    configuration: str
    runs: tuple[RunSummary, ...]
    makespan_s: Spread
    speedup: Spread
    """Makespan of the first configuration over this one's, within each seed; above 1 is faster."""

    @property
    def worst_seed(self) -> RunSummary:
        """The run with the longest makespan."""
        return max(self.runs, key=lambda run: run.makespan_s)


def run_seed(experiment: Experiment, seed: int) -> tuple[RunSummary, ...]:
    """All configurations on the workload of one seed."""
    workload = experiment.workload_of(seed)
    most = max(_preemptions(configuration.settings) for configuration in experiment.configurations)
    bounds: dict[SlotRule, Bound] = {}
    summaries = []
    for configuration in experiment.configurations:
        slots = SlotRule(configuration.settings.slots, configuration.settings.slots_per_gpu)
        if slots not in bounds:
            bounds[slots] = budget_bound(workload, experiment.hardware, slots, max_preemptions_per_step=most)
        result = run_one(experiment, workload, configuration, seed)
        summaries.append(summarise(result, workload, experiment.hardware, configuration, bounds[slots]))
    return tuple(summaries)


def _preemptions(settings: PlaneSettings) -> int:
    """Of one step, at most."""
    return settings.max_preemptions_per_step if settings.preemption else 0


def run_one(
    experiment: Experiment,
    workload: Workload,
    configuration: Configuration,
    seed: int,
    *,
    spans: bool = False,
) -> SimulationResult:
    """One configuration on the workload of this seed; with ``spans``, for charts."""
    learned = configuration.learned or experiment.options.learned
    return simulate(
        workload,
        configuration.settings,
        experiment.hardware,
        seed=seed,
        configuration=configuration.name,
        options=replace(experiment.options, record_spans=spans, learned=learned),
    )


def teach(experiment: Experiment, settings: PlaneSettings, lessons: Sequence[int]) -> str | None:
    """What the predictor knows after the workloads of these seeds, one batch after the other."""
    learned = experiment.options.learned
    for lesson in lessons:
        plane = build_plane(replace(settings, seed=lesson))
        workload = experiment.workload_of(lesson)
        options = SimulationOptions(tools=experiment.options.tools, learned=learned)
        world = make_world(plane, workload, experiment.hardware, options)
        world.run([trajectory.total_tokens for trajectory in workload.trajectories])
        learned = json.dumps(plane.predictor.save())
    return learned


def summarise(
    result: SimulationResult,
    workload: Workload,
    hardware: Hardware,
    configuration: Configuration,
    budget: Bound,
) -> RunSummary:
    """A result in figures, with the bound of its pool; ``budget`` is that of all pools."""
    preemptions = _preemptions(configuration.settings)
    workers = [WorkerSpec(use.worker_id, use.tp_degree, use.slots) for use in result.workers]
    longest = result.longest
    parts = longest.parts
    return RunSummary(
        configuration=result.configuration,
        seed=result.seed,
        makespan_s=result.makespan_s,
        time_to_90_s=result.time_to_share(0.9),
        tokens_per_s=result.tokens_per_s,
        longest_tokens=longest.generated_tokens,
        longest_queue_s=parts.queue_s + parts.preemption_s,
        longest_interference_s=parts.interference_s,
        longest_base_s=parts.decode_base_s,
        computed_tokens=sum(outcome.computed_tokens for outcome in result.outcomes),
        recomputed_tokens=sum(outcome.recomputed_tokens for outcome in result.outcomes),
        preemptions=sum(outcome.preemptions for outcome in result.outcomes),
        migrations=sum(outcome.migrations for outcome in result.outcomes),
        pool=describe_pool(result.workers),
        bound=pool_bound(workload, hardware, workers, max_preemptions_per_step=preemptions),
        budget_bound=budget,
        notes=tuple(note for note in result.notes if note not in workload.notes),
    )


def compare(experiment: Experiment, runs: Sequence[Sequence[RunSummary]]) -> tuple[Compared, ...]:
    """Bring together what :func:`run_seed` gave for every seed."""
    found = []
    for index, configuration in enumerate(experiment.configurations):
        own = tuple(of_seed[index] for of_seed in runs)
        ratios = [of_seed[0].makespan_s / of_seed[index].makespan_s for of_seed in runs]
        found.append(
            Compared(configuration.name, own, Spread.of([run.makespan_s for run in own]), Spread.of(ratios))
        )
    return tuple(found)


def describe_pool(workers: Sequence[WorkerUse]) -> str:
    """``1 x tp4 + 4 x tp1``: how many workers of which degree, largest first."""
    counts = Counter(worker.tp_degree for worker in workers)
    return " + ".join(f"{counts[degree]} x tp{degree}" for degree in sorted(counts, reverse=True))
