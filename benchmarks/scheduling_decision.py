"""What one scheduling decision costs while ten thousand trajectories wait.

    python benchmarks/scheduling_decision.py [--waiting 10000] [--decisions 3000] [--json]

A decision is one event handled by the control plane: *ended*, the end of a generation, which frees a slot
and grants it to whoever is next; and *returned*, a trajectory that comes back from its tool to a full worker,
is ranked, queued, and perhaps takes the slot of another. Two workers of eight slots; lengths are long-tailed
and known, so that schedulers by length have something to decide. Microseconds of this process, on whatever
else the machine does; the invariants are checked once at the end, outside of the time.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from heddle.control.build import PlaneSettings, build_plane
from heddle.control.commands import Command, Generate, Preempt
from heddle.control.events import (
    BatchSubmitted,
    Event,
    GenerationInterrupted,
    PoolRequested,
    StepGenerated,
    ToolsFinished,
    ToolsStarted,
    TrajectorySpec,
    WorkerReady,
)
from heddle.scheduling import SCHEDULERS
from heddle.types import BatchId, GroupId, InterruptReason, TrajectoryId, WorkerId

SLOTS = 8
STEP_S = 0.5
"""Virtual seconds between two ends of generations: long enough for every one to be preemptible."""

BOUND_US = 200.0
"""What the median of a decision must stay below."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One scheduler; times in microseconds."""

    scheduler: str
    waiting: int
    decisions: int
    preemptions: int
    ended_p50_us: float
    ended_p99_us: float
    returned_p50_us: float
    returned_p99_us: float


class Driver:
    """A data plane that takes no time: ends a generation, brings the trajectory back, obeys preemptions."""

    def __init__(self, scheduler: str, waiting: int) -> None:
        settings = PlaneSettings(scheduler=scheduler, predictor="oracle", pool="1+1", slots=SLOTS)
        self.plane = build_plane(settings)
        self.rng = random.Random(7)
        self.now = 0.0
        self.running: dict[TrajectoryId, tuple[WorkerId, int]] = {}
        self.preemptions = 0
        self.timed: dict[str, list[float]] = {"ended": [], "returned": []}
        self.send(PoolRequested(2))
        for name in ("w0", "w1"):
            self.send(WorkerReady(WorkerId(name), SLOTS, None))
        specs = tuple(self._spec(index) for index in range(waiting + 2 * SLOTS))
        self.send(BatchSubmitted(BatchId("b"), specs))

    def _spec(self, index: int) -> TrajectorySpec:
        total = int(200 * self.rng.paretovariate(1.2))
        name = TrajectoryId(f"b-g{index // 8}-t{index % 8}")
        return TrajectorySpec(
            name, GroupId(f"b-g{index // 8}"), 100, 1 << 30, 100, known_total_tokens=max(total, 400)
        )

    def send(self, event: Event, kind: str | None = None) -> None:
        began = time.perf_counter()
        commands = self.plane.handle(event, self.now)
        took = time.perf_counter() - began
        assert self.plane.last_ignored is None, event
        if kind is not None:
            self.timed[kind].append(took * 1e6)
        for command in commands:
            self._obey(command)

    def _obey(self, command: Command) -> None:
        match command:
            case Generate():
                self.running[command.trajectory_id] = (command.worker_id, command.step_index)
            case Preempt():
                self.preemptions += 1
                worker, step = self.running.pop(command.trajectory_id)
                reason = InterruptReason.PREEMPTED
                self.send(GenerationInterrupted(command.trajectory_id, worker, step, 3, reason))
            case _:
                pass

    def cycle(self) -> None:
        """One generation ends, its tools run, and it comes back."""
        self.now += STEP_S
        name = self.rng.choice(list(self.running))
        worker, step = self.running.pop(name)
        self.send(StepGenerated(name, worker, step, 100, 90, 10), "ended")
        self.send(ToolsStarted(name, step, ("python",)))
        self.now += STEP_S
        self.send(ToolsFinished(name, step, 5), "returned")


def measure(scheduler: str, waiting: int, decisions: int) -> Measured:
    """Warm up, then time ``decisions`` cycles."""
    driver = Driver(scheduler, waiting)
    for _ in range(decisions // 10):
        driver.cycle()
    for times in driver.timed.values():
        times.clear()
    gc.collect()
    for _ in range(decisions):
        driver.cycle()
    still = sum(view.waiting for view in driver.plane.worker_views())
    driver.plane.state.check_invariants()
    ended, returned = driver.timed["ended"], driver.timed["returned"]
    return Measured(
        scheduler,
        still,
        decisions,
        driver.preemptions,
        *(statistics.median(ended), quantile(ended, 0.99)),
        *(statistics.median(returned), quantile(returned, 0.99)),
    )


def quantile(values: Sequence[float], q: float) -> float:
    """Nearest rank."""
    return sorted(values)[round(q * (len(values) - 1))]


def main() -> None:
    """Exit status 1 where a median is above the bound."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--decisions", type=int, default=3_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results = [measure(name, options.waiting, options.decisions) for name in SCHEDULERS]
    if options.json:
        print(json.dumps([asdict(result) for result in results]))
    else:
        print(
            f"{'scheduler':16}{'waiting':>9}{'preempted':>11}"
            f"{'ended p50':>11}{'p99':>8}{'returned p50':>14}{'p99':>8}"
        )
        for r in results:
            print(
                f"{r.scheduler:16}{r.waiting:9d}{r.preemptions:11d}{r.ended_p50_us:9.1f}us{r.ended_p99_us:6.0f}us"
                f"{r.returned_p50_us:12.1f}us{r.returned_p99_us:6.0f}us"
            )
    if any(max(r.ended_p50_us, r.returned_p50_us) > BOUND_US for r in results):
        raise SystemExit(f"a median decision took more than {BOUND_US:g} us")


if __name__ == "__main__":
    main()
