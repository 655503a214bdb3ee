"""``heddle simulate``: what configurations of the control plane would do with a recorded workload."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from heddle.cli.output import ExitCode, Output, check_writable
from heddle.cli.plotting import can_plot
from heddle.cli.simulation_tables import describe_experiment, experiment_document
from heddle.control.build import PlaneSettings
from heddle.errors import ConfigError, InvalidRequest
from heddle.planning.profile_csv import ProfileTable
from heddle.planning.shipped import shipped_profiles
from heddle.presets import Preset, find_preset, parse_presets
from heddle.profiling.files import read_profiles
from heddle.signals import end_with_parent
from heddle.simulate.compare import Configuration, Experiment, RunSummary, compare, run_one, run_seed
from heddle.simulate.hardware import EngineRules, PrefillMode, TransferLink, hardware_from_profile
from heddle.simulate.options import SimulationOptions, ToolModel
from heddle.simulate.plot import plot
from heddle.simulate.sampling import (
    Draw,
    SampleSource,
    mean_running_context,
    with_tools_cut,
    within_context,
)
from heddle.simulate.tool_times import parse_tool_times
from heddle.simulate.trace_files import load_workload
from heddle.simulate.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateOptions:
    """What was typed, by the names of the options; ``None`` was not given."""

    trace: str
    gpus: int
    gpu: str | None
    model: str | None
    profile: Path | None
    compare: str
    presets: Path | None
    pool: str
    slots_per_gpu: int
    seeds: int
    seed: int
    jobs: int
    groups: int | None
    samples: int
    samples_from: str
    tool_times: str | None
    max_tool_seconds: float | None
    max_context: int | None
    predictor: str
    predictor_error: float
    prefill: str
    tool_concurrency: int | None
    cold_start: float
    overhead: float
    plot: Path | None


def simulate(options: SimulateOptions, output: Output) -> int:
    """Run and show it. Raises ``InvalidRequest`` and ``ConfigError`` for unusable input."""
    if options.seeds < 1:
        raise InvalidRequest(f"must be at least 1, got {options.seeds}", path="--seeds")
    if options.plot is not None and not can_plot():
        raise ConfigError("--plot needs matplotlib: pip install 'heddle[plot]'")
    if options.plot is not None:
        check_writable(options.plot, "--plot")
    experiment = build_experiment(options)
    seeds = range(options.seed, options.seed + options.seeds)
    runs = run_seeds(experiment, seeds, options.jobs)
    compared = compare(experiment, runs)
    played = experiment.workload_of(seeds[0])
    if output.json:
        output.document(experiment_document(experiment, played, compared))
    else:
        output.text(describe_experiment(experiment, played, compared))
    if options.plot is not None:
        draw_charts(experiment, played, seeds[0], options.plot)
        output.note(f"charts of seed {seeds[0]}: {options.plot}")
    return ExitCode.OK


def build_experiment(options: SimulateOptions) -> Experiment:
    """The experiment that the options name."""
    workload = load_workload(options.trace)
    if options.max_context is not None:
        workload = within_context(workload, options.max_context)
    if options.max_tool_seconds is not None:
        workload = with_tools_cut(workload, options.max_tool_seconds)
    table = profiles_of(options.profile)
    rules = EngineRules(prefill=PrefillMode(options.prefill))
    draw = None
    if options.groups is not None:
        draw = Draw(options.groups, options.samples, SampleSource(options.samples_from))
    hardware = hardware_from_profile(table, options.gpus, gpu=options.gpu, model=options.model, rules=rules)
    base = base_settings(options, table, workload, hardware.link)
    return Experiment(
        workload=workload,
        hardware=hardware,
        configurations=configurations_of(options.compare, options.presets, base),
        draw=draw,
        tool_times=None if options.tool_times is None else parse_tool_times(options.tool_times),
        options=SimulationOptions(
            tools=ToolModel(concurrency=options.tool_concurrency, cold_start_s=options.cold_start),
            overhead_s=options.overhead,
        ),
    )


def base_settings(
    options: SimulateOptions, table: ProfileTable, workload: Workload, link: TransferLink
) -> PlaneSettings:
    """What presets choose upon: step times at the workload's mean context, and how fast prefixes travel."""
    return PlaneSettings(
        pool=options.pool,
        slots_per_gpu=options.slots_per_gpu,
        predictor=options.predictor,
        predictor_error=options.predictor_error,
        profile=table.select(options.gpu, options.model, mean_running_context(workload)),
        transfer_tokens_per_s=link.tokens_per_s,
    )


def profiles_of(path: Path | None) -> ProfileTable:
    """The step times of a file, or the shipped ones."""
    return shipped_profiles() if path is None else read_profiles(path)


def configurations_of(names: str, file: Path | None, base: PlaneSettings) -> tuple[Configuration, ...]:
    """Presets by their names, comma-separated, each over the same settings."""
    presets = presets_of(names, file)
    return tuple(Configuration(preset.name, preset.over(base)) for preset in presets)


def presets_of(names: str, file: Path | None, *, option: str = "--compare") -> Sequence[Preset]:
    """Shipped presets and those of a TOML file. Raises ``InvalidRequest`` and ``ConfigError``."""
    mine = {}
    if file is not None:
        try:
            mine = dict(parse_presets(file.read_text(encoding="utf-8"), source=str(file)))
        except (OSError, UnicodeDecodeError) as exc:
            raise InvalidRequest(f"cannot be read: {exc}", path=str(file)) from exc
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if not wanted:
        raise InvalidRequest("names no preset", path=option)
    if len(set(wanted)) < len(wanted):
        raise InvalidRequest(f"names a preset twice: {names}", path=option)
    return [find_preset(name, mine) for name in wanted]


def run_seeds(experiment: Experiment, seeds: Sequence[int], jobs: int) -> list[tuple[RunSummary, ...]]:
    """Every seed, in ``jobs`` processes; the order and the figures do not depend on how many."""
    if jobs < 1:
        raise InvalidRequest(f"must be at least 1, got {jobs}", path="--jobs")
    run = partial(run_seed, experiment)
    if jobs == 1 or len(seeds) == 1:
        return [run(seed) for seed in seeds]
    with process_pool(min(jobs, len(seeds))) as pool:
        return list(pool.map(run, seeds))


def process_pool(processes: int) -> ProcessPoolExecutor:
    """Of fresh interpreters, which end with this process: a fork would inherit whatever threads it has."""
    return ProcessPoolExecutor(
        processes,
        mp_context=get_context("spawn"),
        initializer=end_with_parent,
        initargs=(os.getpid(),),
    )


def draw_charts(experiment: Experiment, played: Workload, seed: int, path: Path) -> None:
    """Run one seed again with its spans kept, and draw. Raises ``ConfigError`` for a path without a way."""
    results = [
        run_one(experiment, played, configuration, seed, spans=True)
        for configuration in experiment.configurations
    ]
    with _writable(path):
        plot(results, path)


@contextmanager
def _writable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise ConfigError(f"cannot write {path}: {exc.strerror}") from exc
