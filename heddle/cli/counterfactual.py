"""``heddle replay LOG --with PRESET``: what other configurations would have done to a recorded batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Group
from rich.table import Table

from heddle.cli.output import ExitCode, Output
from heddle.cli.simulate import presets_of, profiles_of
from heddle.cli.simulation_tables import describe_workload, run_notes, workload_document
from heddle.control.build import PlaneSettings
from heddle.planning.profile import Profile
from heddle.simulate.compare import Configuration, Experiment, RunSummary, run_seed
from heddle.simulate.fit import FittedDegree, capacities, fit
from heddle.simulate.hardware import (
    EngineRules,
    Hardware,
    PrefillMode,
    TransferLink,
    hardware_from_profile,
)
from heddle.simulate.options import SimulationOptions
from heddle.simulate.readers.recorded import RecordedRun, parse_recorded
from heddle.simulate.trace_files import read_trace

AS_RECORDED = "as recorded"
_HEADINGS = (
    *("makespan (s)", "to 90 %", "ratio", "regret", "longest: queue (s)", "prefilled again", "migrations"),
    "preemptions",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterfactualOptions:
    """What was typed, by the names of the options; ``None`` was not given."""

    presets: str
    file: Path | None
    gpu: str | None
    model: str | None
    profile: Path | None
    prefill: str
    predictor: str | None


@dataclass(frozen=True, slots=True)
class _Machines:
    """Engine times and where they come from."""

    hardware: Hardware
    profile: Profile
    """For configurations that plan by length."""
    origin: str


def replay_with(path: Path, options: CounterfactualOptions, output: Output) -> int:
    """Simulate the log's batch as it was configured and as it was not. Raises ``InvalidRequest``."""
    run = parse_recorded(read_trace(str(path)), name=str(path))
    machines = _machines(run, options)
    settings = run.settings
    if settings.profile is None:
        settings = replace(settings, profile=machines.profile)
    if settings.transfer_tokens_per_s is not None:
        settings = replace(settings, transfer_tokens_per_s=machines.hardware.link.tokens_per_s)
    configurations = [Configuration(AS_RECORDED, settings)]
    for preset in presets_of(options.presets, options.file, option="--with"):
        configurations.append(Configuration(preset.name, _settings_of(preset.over(settings), options)))
    experiment = Experiment(
        workload=run.workload,
        hardware=machines.hardware,
        configurations=tuple(configurations),
        options=SimulationOptions(overhead_s=run.overhead_s),
    )
    runs = run_seed(experiment, settings.seed)
    if output.json:
        output.document(_document(run, machines, runs))
    else:
        output.text(_describe(run, machines, runs))
    return ExitCode.OK


def _settings_of(settings: PlaneSettings, options: CounterfactualOptions) -> PlaneSettings:
    return settings if options.predictor is None else replace(settings, predictor=options.predictor)


def _machines(run: RecordedRun, options: CounterfactualOptions) -> _Machines:
    """From the profile that was given, or else from the log itself."""
    budget = sum(worker.spec.tp_degree for worker in run.workers)
    rules = EngineRules(prefill=PrefillMode(options.prefill))
    if options.profile is not None or options.gpu is not None or options.model is not None:
        table = profiles_of(options.profile)
        hardware = hardware_from_profile(table, budget, gpu=options.gpu, model=options.model, rules=rules)
        return _Machines(hardware, table.select(options.gpu, options.model), table.source)
    fitted = fit(run)
    told = capacities(run)
    engines = tuple(degree.times(told[degree.tp_degree]) for degree in fitted)
    request_s = min(degree.request_s for degree in fitted)
    hardware = Hardware(
        gpus=budget,
        engines=engines,
        rules=replace(rules, prefill_request_s=request_s),
        link=_link(run.settings.transfer_tokens_per_s),
    )
    profile = Profile("", "", 0.0, tuple(engine.profiles[0] for engine in engines))
    return _Machines(hardware, profile, "; ".join(map(_describe_fit, fitted)))


def _link(tokens_per_s: float | None) -> TransferLink:
    """As fast as the recorded run took its own to be."""
    link = TransferLink()
    if tokens_per_s is None:
        return link
    return replace(link, bytes_per_s=tokens_per_s * link.kv_bytes_per_token)


def _describe_fit(fitted: FittedDegree) -> str:
    costs = (
        f"{fitted.step_s:.4g} s a step, {fitted.per_member_s:.3g} s for each further member, "
        f"{fitted.per_prompt_token_s:.3g} s a prompt token, {fitted.request_s:.3g} s a request"
    )
    fitted_to = f"degree {fitted.tp_degree} fitted to {fitted.generations:,} generations"
    return f"{fitted_to}: {costs}; median error {fitted.error:.1%}"


def model_error(run: RecordedRun, simulated: RunSummary) -> float:
    """Relative: above 0 where the simulation takes longer than the run did."""
    return simulated.makespan_s / run.makespan_s - 1.0 if run.makespan_s > 0 else 0.0


def _describe(run: RecordedRun, machines: _Machines, runs: Sequence[RunSummary]) -> Group:
    error = model_error(run, runs[0])
    live, simulated = f"{run.makespan_s:,.1f} s", f"{runs[0].makespan_s:,.1f} s"
    return Group(
        describe_workload(run.workload),
        *(f"  {note}" for note in run.workload.notes),
        *run_notes(runs),
        f"engine times: {machines.origin}",
        f"live {live}, simulated as it was configured {simulated}: the model is off by {error:+.1%}",
        "",
        _table(run, runs),
    )


def _table(run: RecordedRun, runs: Sequence[RunSummary]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("configuration", no_wrap=True)
    headings = (
        "makespan (s)",
        "to 90 %",
        "ratio",
        "regret",
        "longest: queue (s)",
        "of prefill again",
        "moves",
    )
    for heading in (*headings, "preemptions"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("pool", no_wrap=True)
    table.add_row("live", f"{run.makespan_s:,.1f}", *[""] * len(_HEADINGS))
    for one in runs:
        table.add_row(
            one.configuration,
            f"{one.makespan_s:,.1f}",
            f"{one.time_to_90_s:,.1f}",
            f"{runs[0].makespan_s / one.makespan_s:.2f}",
            f"{one.regret:.1%}",
            f"{one.longest_queue_s:,.1f}",
            f"{one.recomputed_tokens:,}",
            f"{one.migrations:,}",
            f"{one.preemptions:,}",
            one.pool,
        )
    return table


def _document(run: RecordedRun, machines: _Machines, runs: Sequence[RunSummary]) -> Mapping[str, object]:
    return {
        "workload": workload_document(run.workload),
        "engine_times": machines.origin,
        "live_makespan_s": run.makespan_s,
        "model_error": model_error(run, runs[0]),
        "configurations": [
            asdict(one) | {"regret": one.regret, "ratio": runs[0].makespan_s / one.makespan_s} for one in runs
        ],
    }
