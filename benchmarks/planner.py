"""How long the planners take: placement and allocation on one core, warm.

    python benchmarks/planner.py [--trajectories 6400] [--gpus 64] [--json]

Lengths are drawn from a long-tailed distribution (the longest is about thirty times the median). Every case
is run until its median is known, at the given number of trajectories and, to see how it grows, at 1,000,
10,000 and 100,000. ``exact`` chooses workers and groups together: once from the request to the plan, with all
checks, tables and the lower bound, and once the choice alone; ``presorted_dp`` places on a given pool of 16
workers; ``annealing`` runs to its end, placing exactly at every try; ``drain`` takes all the time that it
is given. The makespans tell what the time buys; those of ``drain`` are at its own, draining price and compare
with no other.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median

import numpy as np

from heddle.allocation.exact import allocate
from heddle.control.planning import make_plan
from heddle.planning.cost import static_cost
from heddle.planning.plan import AllocatorName, PlacerName, PlanRequest
from heddle.planning.profile import Floats, Profile
from heddle.planning.shipped import shipped_profiles

DEGREES = (1, 2, 4, 8)
GROWTH = (1_000, 10_000, 100_000)
POOL = 16
"""Workers on which ``presorted_dp`` places."""
REPEATS = 50
PATIENCE_S = 5.0
"""Of one case at one size; what it has by then is its median."""
DRAIN_DEADLINE_S = 1.0
ANNEALING_DEADLINE_S = 60.0
"""Far beyond its end at the size that the aim is about."""


@dataclass(frozen=True, slots=True)
class Solved:
    """One run of a planner."""

    took_ms: float
    makespan_s: float


@dataclass(frozen=True, slots=True)
class Case:
    """A planner and what it should take at 6,400 trajectories on 64 GPUs."""

    name: str
    solve: Callable[[], Solved]
    aim_ms: float


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    name: str
    trajectories: int
    median_ms: float
    least_ms: float
    """Where it is far below the median, the machine was busy."""
    runs: int
    aim_ms: float | None
    """At the size that it is meant for."""
    makespan_s: float


def main() -> None:
    """Run all cases and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trajectories", type=int, default=6400)
    parser.add_argument("--gpus", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    profile = shipped_profiles().select("h100_sxm", "Qwen3-14B")
    load_before = os.getloadavg()[0]
    rows: list[Row] = []
    for trajectories in (options.trajectories, *GROWTH):
        lengths = draw_lengths(trajectories, options.seed)
        for case in cases(lengths, options.gpus, profile, options.seed):
            aimed = trajectories == options.trajectories
            rows.append(measure(case, trajectories, aimed=aimed))
            if not options.json:
                print(describe(rows[-1]), flush=True)
    load_after = os.getloadavg()[0]
    if options.json:
        document = {"rows": [asdict(row) for row in rows], "load": [load_before, load_after]}
        print(json.dumps(document, indent=2))
    else:
        print(f"\nload of the machine: {load_before:.1f} before, {load_after:.1f} after")


def draw_lengths(trajectories: int, seed: int) -> Floats:
    """Log-normal, at least one token."""
    rng = np.random.default_rng(seed)
    return np.ceil(rng.lognormal(mean=7.0, sigma=0.9, size=trajectories))


def cases(lengths: Floats, gpus: int, profile: Profile, seed: int) -> Sequence[Case]:
    """All planners on the same problem."""
    exact = PlanRequest(
        lengths=lengths,
        gpus=gpus,
        profile=profile,
        degrees=DEGREES,
        allocator=AllocatorName.EXACT,
        seed=seed,
        compare=False,
    )
    fixed_degree = max(gpus // POOL, 1)
    pool = replace(
        exact,
        allocator=AllocatorName.FIXED,
        placer=PlacerName.PRESORTED_DP,
        fixed_degree=fixed_degree,
        degrees=None,
    )
    annealing = replace(exact, allocator=AllocatorName.ANNEALING, deadline_s=ANNEALING_DEADLINE_S)
    drain = replace(exact, allocator=AllocatorName.DRAIN, deadline_s=DRAIN_DEADLINE_S)
    return (
        Case("exact", planned(exact), aim_ms=2.0),
        Case("exact, the choice alone", chosen(lengths, gpus, profile), aim_ms=2.0),
        Case(f"presorted_dp, {gpus // fixed_degree} workers", planned(pool), aim_ms=42.0),
        Case("annealing", planned(annealing), aim_ms=2000.0),
        Case(f"drain, deadline {DRAIN_DEADLINE_S:g} s", planned(drain), aim_ms=1000.0 * DRAIN_DEADLINE_S),
    )


def planned(request: PlanRequest) -> Callable[[], Solved]:
    """From the request to the plan."""

    def solve() -> Solved:
        plan = make_plan(request, time.perf_counter)
        return Solved(plan.solve_ms, plan.makespan_s)

    return solve


def chosen(lengths: Floats, gpus: int, profile: Profile) -> Callable[[], Solved]:
    """Placement and allocation by ``exact`` on lengths that are sorted and a price that is tabulated."""
    descending = np.sort(lengths)[::-1].copy()
    cost = static_cost(profile, sorted(DEGREES, reverse=True), len(lengths))

    def solve() -> Solved:
        began_at = time.perf_counter()
        partition = allocate(descending, gpus, cost)
        return Solved(1000.0 * (time.perf_counter() - began_at), partition.makespan_s)

    return solve


def measure(case: Case, trajectories: int, *, aimed: bool) -> Row:
    """The median over several runs, after one that compiles and warms."""
    case.solve()
    runs: list[Solved] = []
    began_at = time.perf_counter()
    while len(runs) < REPEATS and (not runs or time.perf_counter() - began_at < PATIENCE_S):
        runs.append(case.solve())
    return Row(
        name=case.name,
        trajectories=trajectories,
        median_ms=median(run.took_ms for run in runs),
        least_ms=min(run.took_ms for run in runs),
        runs=len(runs),
        aim_ms=case.aim_ms if aimed else None,
        makespan_s=runs[-1].makespan_s,
    )


def describe(row: Row) -> str:
    """One line."""
    aim = f"aim {row.aim_ms:,.0f}" if row.aim_ms is not None else ""
    return (
        f"{row.name:28} n {row.trajectories:>7,}  {row.median_ms:>10,.2f} ms  {aim:9}"
        f"  median of {row.runs:>2}, least {row.least_ms:>8,.2f}  makespan {row.makespan_s:,.2f} s"
    )


if __name__ == "__main__":
    main()
