"""``heddle plan``: from predicted lengths, a GPU budget and a profile to workers and their groups."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Group
from rich.table import Table

from heddle.cli.lengths import read_lengths
from heddle.cli.output import ExitCode, Output
from heddle.errors import ConfigError, InvalidRequest
from heddle.planning.hedge import hedged_lengths
from heddle.planning.plan import AllocatorName, PlacerName, Plan, PlannedWorker, PlanRequest, PriceName
from heddle.planning.profile import Profile
from heddle.planning.shipped import shipped_profiles
from heddle.profiling.files import read_profiles


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """What was typed, by the names of the options; ``None`` was not given."""

    lengths: str
    gpus: int
    gpu: str | None = None
    model: str | None = None
    profile: Path | None = None
    degrees: str | None = None
    placer: str | None = None
    allocator: str | None = None
    fixed_degree: int | None = None
    price: str | None = None
    kv_heads: int | None = None
    slots_per_gpu: int | None = None
    context_tokens: float | None = None
    min_workers: int | None = None
    max_workers: int | None = None
    bundle_below: float = 0.0
    trust: float = 1.0
    seed: int = 0
    deadline_s: float = 1.0


def plan(options: PlanOptions, output: Output) -> int:
    """Make the plan and show it. Raises ``InvalidRequest`` and ``ConfigError`` for unusable input."""
    request = build_request(options)
    from heddle.control.planning import make_plan  # imported late: compiled planners load for a second

    made = make_plan(request, time.perf_counter)
    if output.json:
        output.document(plan_document(made))
    else:
        output.text(describe_plan(made, request))
    return ExitCode.OK


def build_request(options: PlanOptions) -> PlanRequest:
    """The planning problem that the options name."""
    lengths = read_lengths(options.lengths)
    table = shipped_profiles() if options.profile is None else read_profiles(options.profile)
    degrees = parse_numbers(options.degrees, "--degrees")
    allocator = AllocatorName.DRAIN if options.allocator is None else AllocatorName(options.allocator)
    fixed_degree = options.fixed_degree
    if allocator is AllocatorName.FIXED and fixed_degree is None:
        fixed_degree = _only(degrees)
    return PlanRequest(
        lengths=hedged_lengths(lengths.levels, lengths.quantiles, options.trust),
        gpus=options.gpus,
        profile=table.select(options.gpu, options.model, options.context_tokens),
        degrees=degrees,
        placer=None if options.placer is None else PlacerName(options.placer),
        allocator=allocator,
        fixed_degree=fixed_degree,
        price=None if options.price is None else PriceName(options.price),
        kv_heads=options.kv_heads,
        slots_per_gpu=options.slots_per_gpu,
        context_tokens=options.context_tokens,
        min_workers=options.min_workers,
        max_workers=options.max_workers,
        bundle_below_tokens=options.bundle_below,
        seed=options.seed,
        deadline_s=options.deadline_s,
    )


def parse_numbers(text: str | None, option: str) -> tuple[int, ...] | None:
    """``1,2,4`` as positive numbers; ``None`` as it is. Raises ``InvalidRequest`` that names the option."""
    if text is None:
        return None
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError as exc:
        raise InvalidRequest(f"{text!r} is not a list of whole numbers such as 1,2,4", path=option) from exc
    if min(numbers) < 1:
        raise InvalidRequest(f"every number must be at least 1, got {min(numbers)}", path=option)
    return numbers


def plan_document(made: Plan) -> Mapping[str, object]:
    """The document of ``heddle plan --json``."""
    return {
        "makespan_s": made.makespan_s,
        "lower_bound_s": made.lower_bound_s,
        "workers": [
            {
                "tp": worker.tp_degree,
                "size": worker.size,
                "first_length": worker.first_length,
                "seconds": worker.seconds,
            }
            for worker in made.workers
        ],
        "compared": [{"name": other.name, "makespan_s": other.makespan_s} for other in made.compared],
        "solve_ms": made.solve_ms,
    }


def describe_plan(made: Plan, request: PlanRequest) -> Group:
    """The plan for people: what was asked, the workers, and what else there was."""
    profile = request.profile
    asked = (
        f"{len(request.lengths):,} trajectories on {request.gpus} GPUs, {name_profile(profile)}; "
        f"{made.price} price, solved in {made.solve_ms:.1f} ms"
    )
    return Group(asked, "", workers_table(made), "", comparison_table(made))


def name_profile(profile: Profile) -> str:
    """GPU, model and context, as far as the profile names them."""
    names = [name for name in (profile.gpu, profile.model) if name]
    return ", ".join([*names, f"mean context {profile.context_tokens:,.0f}"])


def workers_table(made: Plan) -> Table:
    """One line for each worker."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("worker", "tp", "trajectories", "longest (tokens)", "seconds", "of makespan"):
        table.add_column(heading, justify="right", no_wrap=True)
    for number, worker in enumerate(made.workers):
        table.add_row(str(number), *_worker_cells(worker, made.makespan_s))
    return table


def _worker_cells(worker: PlannedWorker, makespan_s: float) -> tuple[str, ...]:
    share = f"{worker.seconds / makespan_s:.0%}" if makespan_s else "-"
    longest = f"{worker.first_length:,.0f}"
    return str(worker.tp_degree), f"{worker.size:,}", longest, f"{worker.seconds:,.2f}", share


def comparison_table(made: Plan) -> Table:
    """The plan between what cannot be beaten and the homogeneous pools."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("makespan", no_wrap=True)
    table.add_column("seconds", justify="right", no_wrap=True)
    table.add_column("of the plan", justify="right", no_wrap=True)
    rows = [("this plan", made.makespan_s), *((other.name, other.makespan_s) for other in made.compared)]
    rows.append(("lower bound", made.lower_bound_s))
    for name, seconds in rows:
        ratio = f"{seconds / made.makespan_s:.3f}x" if made.makespan_s else "-"
        table.add_row(name, f"{seconds:,.2f}", ratio)
    return table


def _only(degrees: tuple[int, ...] | None) -> int:
    """The degree of a fixed allocation that names no other."""
    if degrees is None or len(degrees) != 1:
        raise ConfigError("--allocator fixed needs --fixed-degree, or --degrees with a single one")
    return degrees[0]
