"""What the planners are worth on real lengths.

    python benchmarks/plans_on_traces.py --traces DIR [--deadline 1.0] [--slots-only] [--json]

``DIR`` holds traces as ``*.jsonl`` or ``*.jsonl.gz``: one trajectory a line, ``{"steps": [{"output_tokens":
N, ...}, ...], ...}``. A length is all output tokens of a trajectory; batches of the wanted size are drawn
from a trace with replacement, by a seed. Two tables:

- *predicted*: makespans at the static price (slots and KV capacity ignored) of the homogeneous pools,
  annealing and exact, and the lower bound, on 8 and 64 GPUs;
- *run*: every plan is run event by event in the draining model: the batch of a worker shrinks as members
  finish, and what exceeds its slots and KV capacity waits, longest first. The runner here shares nothing with
  the planners but the table of step times. The lower bound holds for any plan in this model.

``drain`` and one of the placements of each homogeneous pool are random searches that the clock ends. Where
such a pool is the best there is, the one that was held up may be a little slower: all cells in which another
plan is faster are named, and those in which it is by more than ``TOLERANCE`` are counted apart.

The static price knows no KV capacity and pays dearly for it where a model hardly fits: ``exact-kv`` is exact
at the price that does, and with ``--slots-only`` no plan and no worker has a KV capacity.
"""

from __future__ import annotations

import argparse
import gzip
import heapq
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import geometric_mean

import numpy as np

from heddle.control.planning import make_plan
from heddle.planning.cost import concurrency
from heddle.planning.plan import AllocatorName, PlacerName, Plan, PlanRequest, PriceName
from heddle.planning.profile import Floats, Profile
from heddle.planning.shipped import shipped_profiles

DEGREES = (1, 2, 4, 8)
SLOTS_PER_GPU = 64
MODELS = ("Qwen3-8B", "Qwen3-14B", "Qwen3-32B")
PREDICTED = ((1_024, 8), (4_096, 64))
"""Trajectories and GPUs of the first table."""
RUN = ((256, 8), (1_024, 8), (4_096, 64))
"""Of the second."""
ROUNDING = 1e-9
"""Relative; what the sums of the two implementations may differ by."""
TOLERANCE = 1e-4
"""Relative; what two random searches that the clock ends may differ by in the same pool."""

DRAIN = "drain"
EXACT = "exact"
EXACT_KV = "exact-kv"
ANNEALING = "annealing"
PAPER = "paper"
"""Annealing that places by ``presorted_dp``."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One problem, and the makespan of each plan for it."""

    trace: str
    model: str
    trajectories: int
    gpus: int
    makespans_s: Mapping[str, float]
    lower_bound_s: float

    @property
    def best_homogeneous_s(self) -> float:
        """Of all homogeneous pools, in hindsight."""
        return min(seconds for name, seconds in self.makespans_s.items() if name.startswith("fix-"))

    @property
    def fastest(self) -> str:
        """The plan that ends first; ``drain`` among equals."""
        best = min(self.makespans_s.values())
        if self.makespans_s[DRAIN] <= best * (1 + ROUNDING):
            return DRAIN
        return min(self.makespans_s, key=self.makespans_s.__getitem__)

    def over_drain(self, name: str) -> float:
        """How many times as long as ``drain`` a plan takes."""
        return self.makespans_s[name] / self.makespans_s[DRAIN]


def main() -> None:
    """Make both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--traces", type=Path, required=True, help="folder of *.jsonl(.gz)")
    parser.add_argument("--gpu", default="h100_sxm")
    parser.add_argument("--model", default="Qwen3-14B", help="of the first table")
    parser.add_argument("--deadline", type=float, default=1.0, help="seconds for drain")
    parser.add_argument("--slots-only", action="store_true", help="no KV capacity in the second table")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    traces = {path.name.partition(".jsonl")[0]: read_lengths(path) for path in trace_files(options.traces)}
    load_before = os.getloadavg()[0]
    profile = shipped_profiles().select(options.gpu, options.model)
    predicted = [
        predict(name, draw(lengths, size, options.seed), gpus, profile, options.seed)
        for name, lengths in traces.items()
        for size, gpus in PREDICTED
    ]
    if not options.json:
        print_predicted(predicted)
    ran: list[Cell] = []
    profiles = [shipped_profiles().select(options.gpu, model) for model in MODELS]
    if options.slots_only:
        profiles = [without_kv_capacity(profile) for profile in profiles]
    for cell in run_all(traces, profiles, options.deadline, options.seed):
        ran.append(cell)
        if not options.json:
            print_run_line(cell, header=len(ran) == 1)
    loads = (load_before, os.getloadavg()[0])
    if options.json:
        document = {
            "predicted": [asdict(c) for c in predicted],
            "run": [asdict(c) for c in ran],
            "load": loads,
        }
        print(json.dumps(document, indent=2))
    else:
        print_summary(ran)
        print(f"\nload of the machine: {loads[0]:.1f} before, {loads[1]:.1f} after")


# ------------------------------------------------------------------------------------------ lengths


def trace_files(folder: Path) -> list[Path]:
    """The traces of a folder, by name."""
    found = sorted([*folder.glob("*.jsonl"), *folder.glob("*.jsonl.gz")])
    if not found:
        raise SystemExit(f"{folder} holds no *.jsonl or *.jsonl.gz")
    return found


def read_lengths(path: Path) -> Floats:
    """Output tokens of every trajectory of a trace."""
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open("rt") as lines:
        totals = [sum(step["output_tokens"] for step in json.loads(line)["steps"]) for line in lines]
    return np.array(totals, dtype=np.float64)


def draw(lengths: Floats, size: int, seed: int) -> Floats:
    """A batch of this size, with replacement."""
    return np.random.default_rng(seed).choice(lengths, size=size)


# ---------------------------------------------------------------------------------------- predicted


def predict(trace: str, lengths: Floats, gpus: int, profile: Profile, seed: int) -> Cell:
    """Makespans at the static price."""
    exact = PlanRequest(
        lengths=lengths, gpus=gpus, profile=profile, degrees=DEGREES, allocator=AllocatorName.EXACT, seed=seed
    )
    annealing = replace(exact, allocator=AllocatorName.ANNEALING, deadline_s=10.0, compare=False)
    plan = solve(exact)
    makespans = {other.name: other.makespan_s for other in plan.compared}
    makespans |= {ANNEALING: solve(annealing).makespan_s, EXACT: plan.makespan_s}
    return Cell(trace, profile.model, len(lengths), gpus, makespans, plan.lower_bound_s)


def solve(request: PlanRequest) -> Plan:
    """Without a clock of one's own."""
    return make_plan(request, time.perf_counter)


# ---------------------------------------------------------------------------------------------- run


def run_all(
    traces: Mapping[str, Floats], profiles: Sequence[Profile], deadline_s: float, seed: int
) -> Iterator[Cell]:
    """Every trace with every model and size."""
    for name, lengths in traces.items():
        for profile in profiles:
            for size, gpus in RUN:
                yield run_cell(name, draw(lengths, size, seed), gpus, profile, deadline_s, seed)


def without_kv_capacity(profile: Profile) -> Profile:
    """Only slots cap a batch."""
    degrees = tuple(replace(degree, kv_capacity_tokens=None) for degree in profile.degrees)
    return replace(profile, degrees=degrees)


def run_cell(trace: str, lengths: Floats, gpus: int, profile: Profile, deadline_s: float, seed: int) -> Cell:
    """All plans for one problem, each run to its end."""
    drain = PlanRequest(
        lengths=lengths,
        gpus=gpus,
        profile=profile,
        degrees=DEGREES,
        slots_per_gpu=SLOTS_PER_GPU,
        seed=seed,
        deadline_s=deadline_s,
        compare=False,
    )
    static = replace(drain, allocator=AllocatorName.EXACT, price=PriceName.STATIC)
    requests = {
        DRAIN: drain,
        EXACT: static,
        EXACT_KV: replace(static, price=PriceName.KV_AWARE),
        ANNEALING: replace(static, allocator=AllocatorName.ANNEALING, deadline_s=2.0),
        PAPER: replace(
            static, allocator=AllocatorName.ANNEALING, placer=PlacerName.PRESORTED_DP, deadline_s=2.0
        ),
    }
    makespans: dict[str, float] = {}
    for degree in DEGREES:
        if degree in usable(profile):
            makespans[f"fix-{degree}"] = min(
                run_plan(solve(request), request) for request in homogeneous(drain, degree)
            )
    plans = {name: solve(request) for name, request in requests.items()}
    makespans |= {name: run_plan(plan, requests[name]) for name, plan in plans.items()}
    return Cell(trace, profile.model, len(lengths), gpus, makespans, plans[DRAIN].lower_bound_s)


def homogeneous(drain: PlanRequest, degree: int) -> Iterator[PlanRequest]:
    """Plans on as many workers of one degree as there is room for, placed in every way that there is."""
    fixed = replace(drain, allocator=AllocatorName.FIXED, fixed_degree=degree, degrees=None)
    for placer in (PlacerName.EXACT, PlacerName.PRESORTED_DP):
        yield replace(fixed, placer=placer, price=PriceName.STATIC)
    yield replace(fixed, placer=PlacerName.EXACT, price=PriceName.KV_AWARE)
    yield replace(fixed, placer=PlacerName.DRAIN, price=PriceName.DRAINING, deadline_s=0.1)


def usable(profile: Profile) -> tuple[int, ...]:
    """The degrees that hold at least one trajectory."""
    return tuple(d.tp_degree for d in profile.degrees if d.concurrency(profile.context_tokens) != 0)


def run_plan(plan: Plan, request: PlanRequest) -> float:
    """Seconds until the last trajectory of the plan ends."""
    lengths = np.asarray(request.lengths)
    ran = np.zeros(len(lengths), dtype=bool)
    makespan_s = 0.0
    for worker in plan.workers:
        group = lengths[worker.members]
        ran[worker.members] = True
        most = max(len(group), 1)
        (cap,) = concurrency(request.profile, [worker.tp_degree], most, slots_per_gpu=request.slots_per_gpu)
        steps = request.profile[worker.tp_degree].step_table(most)
        makespan_s = max(makespan_s, run_group(group.tolist(), steps.tolist(), int(cap)))
    if not ran.all() or sum(worker.size for worker in plan.workers) != len(lengths):
        raise SystemExit("a plan lost or doubled a trajectory")
    if sum(worker.tp_degree for worker in plan.workers) > request.gpus:
        raise SystemExit("a plan exceeds its budget")
    return makespan_s


def run_group(lengths: Sequence[float], steps: Sequence[float], cap: int) -> float:
    """Run a group on one worker, event by event; ``steps[b]`` are the seconds of a step at batch ``b``."""
    waiting = sorted(lengths)
    running: list[float] = []  # for each member, the step at which it ends
    step = seconds = 0.0
    while waiting or running:
        while waiting and len(running) < cap:
            heapq.heappush(running, step + waiting.pop())
        ends_at = running[0]
        seconds += (ends_at - step) * steps[len(running)]
        step = ends_at
        while running and running[0] <= step:
            heapq.heappop(running)
    return seconds


# ------------------------------------------------------------------------------------------- tables


def print_predicted(cells: Sequence[Cell]) -> None:
    """The first table."""
    print(f"predicted makespan (s) at the static price, {cells[0].model}")
    names = list(dict.fromkeys(name for cell in cells for name in cell.makespans_s))
    print(f"{'trace':36}{'n':>6}{'GPUs':>5}" + "".join(f"{name:>11}" for name in [*names, "bound"]))
    for cell in cells:
        figures = [cell.makespans_s.get(name, np.nan) for name in names] + [cell.lower_bound_s]
        print(
            f"{cell.trace:36}{cell.trajectories:>6}{cell.gpus:>5}" + "".join(f"{s:>11,.1f}" for s in figures)
        )


def print_run_line(cell: Cell, *, header: bool) -> None:
    """One line of the second table."""
    others = (EXACT, EXACT_KV, ANNEALING, PAPER)
    if header:
        print("\nmakespan in the draining model: drain in seconds, the others as multiples of it")
        columns = ("drain (s)", "best fix", *others, "gap")
        print(f"{'trace':36}{'model':>10}{'n':>6}{'GPUs':>5}" + "".join(f"{c:>11}" for c in columns))
    figures = [cell.best_homogeneous_s / cell.makespans_s[DRAIN], *map(cell.over_drain, others)]
    gap = cell.makespans_s[DRAIN] / cell.lower_bound_s
    where = f"{cell.trace:36}{cell.model:>10}{cell.trajectories:>6}{cell.gpus:>5}"
    print(
        f"{where}{cell.makespans_s[DRAIN]:>11,.1f}" + "".join(f"{f:>11.3f}" for f in [*figures, gap]),
        flush=True,
    )


def print_summary(cells: Sequence[Cell]) -> None:
    """Means and worst cases over the second table."""
    print(f"\nover {len(cells)} cells{'geometric mean':>24}{'least':>9}{'most':>9}")
    for name in (EXACT, EXACT_KV, ANNEALING, PAPER):
        print_ratios(f"{name} / drain", [cell.over_drain(name) for cell in cells])
    print_ratios("best fix / drain", [cell.best_homogeneous_s / cell.makespans_s[DRAIN] for cell in cells])
    print_ratios("drain / lower bound", [cell.makespans_s[DRAIN] / cell.lower_bound_s for cell in cells])
    slower = [cell for cell in cells if cell.fastest != DRAIN]
    clearly = sum(1 - cell.over_drain(cell.fastest) > TOLERANCE for cell in slower)
    print(f"cells where another plan is faster than drain: {len(slower)}")
    print(f"by more than {TOLERANCE:.2%}: {clearly}")
    for cell in slower:
        share = 1 - cell.over_drain(cell.fastest)
        print(
            f"  {cell.trace}, {cell.model}, {cell.trajectories} on {cell.gpus}: {cell.fastest} by {share:.4%}"
        )


def print_ratios(name: str, ratios: Sequence[float]) -> None:
    """One line of the summary."""
    print(f"{name:20}{geometric_mean(ratios):>17.3f}{min(ratios):>9.3f}{max(ratios):>9.3f}")


if __name__ == "__main__":
    main()
