"""One rehearsal as it is asked for and answered: values that travel between processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from heddle.control.build import PlaneSettings
from heddle.errors import ConfigError
from heddle.planning.profile_csv import ProfileTable
from heddle.presets import Choices, Preset
from heddle.rehearsal.candidates import parts_of
from heddle.rehearsal.race import DRAWS, HOPELESS, MARGIN, Entrant, Outcome, Rehearsal, rehearse
from heddle.rehearsal.recorded import like_recorded, recorded_workload
from heddle.simulate.compare import Experiment
from heddle.simulate.hardware import hardware_from_profile
from heddle.simulate.options import SimulationOptions, ToolModel
from heddle.simulate.tool_times import parse_tool_times


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalRequest:
    """What to rehearse, and on what."""

    recorded: str
    """As :func:`~heddle.rehearsal.recorded.recorded_workload` takes it."""
    settings: PlaneSettings
    """As configured: slots, predictor and seed are those of the live run."""
    gpus: int
    """The budget; where workers are threads, so many."""
    table: ProfileTable
    """Step times and prefill rates."""
    gpu: str | None = None
    model: str | None = None
    pool: tuple[int, ...] | None = None
    """Degrees of workers that are there already and cannot be chosen any more."""
    groups: int | None = None
    """Of the next batch; ``None``: as many as were recorded."""
    samples: int | None = None
    """Of each group; ``None``: as recorded."""
    tool_times: str | None = None
    """For times that were not recorded."""
    tool_concurrency: int | None = None
    draws: int = DRAWS
    margin: float = MARGIN
    parts: int | None = None
    """Rehearse on this part of the budget with this part of the groups; ``None``: what suits the budget."""


@dataclass(frozen=True, slots=True)
class Tried:
    """One candidate, for a table."""

    pool: str
    way: str
    makespan_s: float | None
    """Mean over its draws; ``None``: it was given up in the first."""
    draws: int
    note: str


@dataclass(frozen=True, slots=True)
class Found:
    """The answer."""

    pool: str
    """As ``engine.pool`` takes it, for the whole budget."""
    way: str
    choices: Choices
    """What to change of the configured settings, the pool included."""
    makespan_s: float
    gain: float
    """Over the best candidate that looks at no length."""
    trajectories: int
    """In each draw."""
    parts: int
    simulations: int
    tried: Sequence[Tried]
    """The fastest first."""
    notes: Sequence[str]
    """What of the workload was not recorded."""

    def toml(self, base: str | None) -> str:
        """A preset of this choice upon the one that was configured."""
        return Preset("rehearsed", "", self.choices).toml(base)


def answer(request: RehearsalRequest, *, told: Callable[[str], None] = lambda line: None) -> Found:
    """Rehearse. Raises ``InvalidRequest``, ``ConfigError`` and ``StoreError`` for what cannot be used."""
    workload = recorded_workload(request.recorded)
    draw = like_recorded(workload, request.groups, request.samples)
    machines = hardware_from_profile(request.table, request.gpus, gpu=request.gpu, model=request.model)
    degrees = [engine.tp_degree for engine in machines.engines]
    parts = request.parts or (1 if request.pool else parts_of(request.gpus, degrees))
    if request.gpus % parts or draw.groups < parts:
        raise ConfigError(f"{request.gpus} GPUs and {draw.groups} groups do not make {parts} equal parts")
    experiment = Experiment(
        workload=workload,
        hardware=machines.part(parts),
        configurations=(),
        draw=draw.part(parts),
        tool_times=None if request.tool_times is None else parse_tool_times(request.tool_times),
        options=SimulationOptions(tools=ToolModel(request.tool_concurrency)),
    )
    rehearsal = Rehearsal(experiment, request.settings, request.draws, request.margin, request.settings.seed)
    outcome = rehearse(rehearsal, pools=None if request.pool is None else [request.pool], told=told)
    played = experiment.workload_of(rehearsal.seed)
    return _found(outcome, parts, len(played.trajectories), played.notes)


def _found(outcome: Outcome, parts: int, trajectories: int, notes: Sequence[str]) -> Found:
    chosen = outcome.chosen.candidate
    pool = "+".join(map(str, sorted(chosen.pool * parts, reverse=True)))
    choices: Choices = {**chosen.choices, "pool": pool}
    return Found(
        pool=pool,
        way=chosen.way,
        choices=choices,
        makespan_s=outcome.chosen.mean_s,
        gain=outcome.gain,
        trajectories=trajectories,
        parts=parts,
        simulations=outcome.simulations,
        tried=[_tried(e) for e in sorted(outcome.entrants, key=lambda e: (not e.running, e.mean_s))],
        notes=notes,
    )


def _tried(entrant: Entrant) -> Tried:
    makespans = entrant.makespans
    if entrant.same_as is not None:
        note = f"did the same as {entrant.same_as.way}"
    elif not makespans:
        note = f"given up: {HOPELESS - 1:.0%} behind"
    else:
        note = "dropped" if entrant.dropped else ""
    candidate = entrant.candidate
    return Tried(
        candidate.pool_name, candidate.way, entrant.mean_s if makespans else None, len(makespans), note
    )
