"""``simulate``: one configuration on one workload with one seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from heddle.control.build import PlaneSettings, build_plane
from heddle.control.log import encode_header
from heddle.control.plane import ControlPlane
from heddle.errors import ConfigError
from heddle.simulate.hardware import Hardware
from heddle.simulate.journey import Journey
from heddle.simulate.options import SimulationOptions
from heddle.simulate.result import SimulationResult
from heddle.simulate.workload import Workload, WorkTrajectory
from heddle.simulate.world import World
from heddle.types import BatchId, GroupId, TrajectoryId

DEFAULT_OPTIONS = SimulationOptions()


def simulate(
    workload: Workload,
    settings: PlaneSettings,
    hardware: Hardware,
    *,
    seed: int,
    configuration: str,
    options: SimulationOptions = DEFAULT_OPTIONS,
) -> SimulationResult:
    """Play ``workload`` to its end under the control plane that ``settings`` describe.

    ``seed`` replaces the one of ``settings``; the world itself draws nothing at random, so equal arguments
    give equal results. The pool is planned with the workload's own lengths, in hindsight, by allocators that
    look at lengths. ``configuration`` only names the result. Raises ``ConfigError`` for a workload that
    cannot be played, settings that cannot be built, or a pool without step times.
    """
    settings = replace(settings, seed=seed)
    world = make_world(build_plane(settings), workload, hardware, options)
    if options.log is not None:
        options.log(encode_header(settings))
    world.run([trajectory.total_tokens for trajectory in workload.trajectories])
    outcomes = tuple(world.rollouts.outcomes[t.trajectory_id] for t in workload.trajectories)
    return SimulationResult(
        configuration=configuration,
        workload=workload.name,
        seed=seed,
        makespan_s=world.rollouts.makespan_s(),
        outcomes=outcomes,
        workers=world.workers.uses(),
        spans=tuple(world.rollouts.spans),
        events=world.events,
        notes=(*workload.notes, *_notes(world)),
    )


def makespan_within(
    workload: Workload,
    settings: PlaneSettings,
    hardware: Hardware,
    *,
    seed: int,
    most_s: float,
    options: SimulationOptions = DEFAULT_OPTIONS,
) -> float | None:
    """The makespan that :func:`simulate` would find; ``None`` where the end is not there ``most_s`` after 0.

    It is given up then, so that a hopeless configuration costs no more than the time it is allowed.
    Raises as :func:`simulate`.
    """
    world = make_world(build_plane(replace(settings, seed=seed)), workload, hardware, options)
    lengths = [trajectory.total_tokens for trajectory in workload.trajectories]
    return world.rollouts.makespan_s() if world.run(lengths, most_s) else None


def make_world(
    plane: ControlPlane, workload: Workload, hardware: Hardware, options: SimulationOptions
) -> World:
    """A world that will play ``workload`` under any control plane, also one that no settings describe.

    Raises ``ConfigError`` for a workload that cannot be played.
    """
    _refuse_unplayable(workload)
    return World(plane, hardware, options, _journeys(workload, hardware))


def _refuse_unplayable(workload: Workload) -> None:
    """Raise ``ConfigError`` that names the first trajectory with what no world can play."""
    seen: set[TrajectoryId] = set()
    for trajectory in workload.trajectories:
        name = trajectory.trajectory_id
        if name in seen:
            raise ConfigError(f"{workload.name} holds two trajectories {name}")
        seen.add(name)
        if trajectory.arrival_s < 0 or not trajectory.steps:
            raise ConfigError(f"{name} must have a step, and not arrive before time 0")
        for index, step in enumerate(trajectory.steps):
            where = f"{name}, step {index}"
            if step.tool_seconds is None:
                raise ConfigError(f"{where}: its tool time was not recorded; draw it from a distribution")
            if step.tool_seconds < 0 or step.output_tokens < 1 or step.prompt_tokens < 0:
                raise ConfigError(f"{where}: {step} cannot be played")
        if not trajectory.steps[0].prompt_tokens:
            raise ConfigError(f"{name}, step 0: a trajectory begins with a prompt of at least 1 token")


def _journeys(workload: Workload, hardware: Hardware) -> Mapping[TrajectoryId, Journey]:
    batches = {time: f"b{i}" for i, time in enumerate(sorted({t.arrival_s for t in workload.trajectories}))}
    shared = _shared_prompts(workload) if hardware.rules.share_prompts else {}
    return {
        trajectory.trajectory_id: Journey(
            work=trajectory,
            batch_id=BatchId(batches[trajectory.arrival_s]),
            shared_prompt_tokens=shared.get(trajectory.group_id, 0),
            context_tokens=trajectory.steps[0].prompt_tokens,
        )
        for trajectory in workload.trajectories
    }


def _shared_prompts(workload: Workload) -> Mapping[GroupId, int]:
    """What the members of each group of more than one have in common."""
    sizes: Counter[GroupId] = Counter()
    tokens: dict[GroupId, int] = {}
    for trajectory in workload.trajectories:
        group, own = trajectory.group_id, _first_prompt(trajectory)
        sizes[group] += 1
        tokens[group] = min(own, tokens.get(group, own))
    return {group: tokens[group] for group, size in sizes.items() if size > 1}


def _first_prompt(trajectory: WorkTrajectory) -> int:
    return trajectory.steps[0].prompt_tokens


def _notes(world: World) -> tuple[str, ...]:
    oversized = world.workers.oversized()
    if not oversized:
        return ()
    return (
        f"{oversized} generations were larger than the whole KV memory of their worker; they ran by "
        "themselves as if they fitted, where a real engine refuses them",
    )
