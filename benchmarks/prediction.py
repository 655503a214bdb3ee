"""What predictions cost: time on the event loop, and memory over a long life.

    python benchmarks/prediction.py [--finished 100000] [--open 2000] [--json]

All cheap sources together (``progressive``), after they have learned. *single* is one prediction, *batch* is
256 at once, *learn* one turn of learning from what has ended, *step* what a step of an open trajectory costs:
medians and 99th percentiles in milliseconds of CPU time of the thread, so that what else the machine does
counts little. Memory is what the predictor's saved state takes and what the process holds, in the middle of
the stream and at its end.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import orjson
import psutil

from heddle.control.ports import LengthPredictor
from heddle.predict import make_predictor
from heddle.predict.evaluation.recorded import RecordedPoint, RecordedTrajectory, ReplayedView, view_of
from heddle.types import GroupId, StepView, TrajectoryId

BATCH = 256

BOUND_MS = {"single": 0.3, "batch": 2.0, "learn": 1.0}
"""What the medians must stay below."""

REPEATS = 400


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one kind of call, in milliseconds."""

    call: str
    median_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Memory:
    """After so many finished trajectories, in bytes."""

    finished: int
    saved_bytes: int
    resident_bytes: int


class Stream:
    """Trajectories of one workload that begin, take steps and end, some of them side by side."""

    def __init__(self, predictor: LengthPredictor, open_at_once: int) -> None:
        self.predictor = predictor
        self.rng = random.Random(11)
        self.learned_ms: list[float] = []
        self.stepped_ms: list[float] = []
        self.finished = 0
        self._begun = 0
        self._open = [self.begin() for _ in range(open_at_once)]

    def begin(self) -> tuple[ReplayedView, int]:
        """A new trajectory, and how many steps it will take."""
        number, self._begun = self._begun, self._begun + 1
        prompt = self.rng.randrange(50_000)
        recorded = RecordedTrajectory(
            TrajectoryId(f"t{number}"), f"p{prompt}", "w", (RecordedPoint(0, 0, 200),), 1, 1
        )
        view = view_of(recorded, GroupId(f"g{number // 8}"), known=False)
        self.predictor.predict([view])
        return view, self.rng.randint(1, 8)

    def step(self) -> None:
        """One trajectory takes a step, and ends if that was its last."""
        index = self.rng.randrange(len(self._open))
        view, left = self._open[index]
        began = time.thread_time()
        tokens = round(100 * self.rng.lognormvariate(0.0, 1.0)) + 1
        view.steps_done += 1
        view.generated_tokens += tokens
        view.context_tokens += tokens + 20
        view.last_step = StepView(tokens, ("python",), (self.rng.choice(("ok", "error")),), 0.5, 20)
        self.predictor.observe_step(view)
        if left == 1:
            self.predictor.observe_finished(view)
            self.finished += 1
            self._open[index] = self.begin()
        else:
            self.predictor.predict([view])
            self._open[index] = view, left - 1
        self.stepped_ms.append(1000.0 * (time.thread_time() - began))
        while self.predictor.waiting:
            began = time.thread_time()
            self.predictor.settle()
            self.learned_ms.append(1000.0 * (time.thread_time() - began))

    def until(self, finished: int) -> Memory:
        """Go on until so many have ended."""
        while self.finished < finished:
            self.step()
        gc.collect()
        saved = len(orjson.dumps(self.predictor.save()))
        return Memory(self.finished, saved, psutil.Process().memory_info().rss)

    def views(self, count: int) -> list[ReplayedView]:
        """Fresh trajectories, as a batch brings them."""
        return [self.begin()[0] for _ in range(count)]


def timed(call: str, work: Callable[[], object]) -> Cost:
    """Repeat and summarise."""
    times = []
    for _ in range(REPEATS):
        began = time.thread_time()
        work()
        times.append(1000.0 * (time.thread_time() - began))
    return summarised(call, times)


def summarised(call: str, times: list[float]) -> Cost:
    """Median and 99th percentile (nearest rank)."""
    return Cost(call, statistics.median(times), sorted(times)[round(0.99 * (len(times) - 1))])


def main() -> None:
    """Exit status 1 where a median is above its bound or memory grew in the second half of the stream."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--finished", type=int, default=100_000)
    parser.add_argument("--open", type=int, default=2_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    predictor = make_predictor("progressive")
    stream = Stream(predictor, options.open)
    early = stream.until(options.finished // 2)
    stream.learned_ms.clear()
    stream.stepped_ms.clear()
    late = stream.until(options.finished)
    one, many = stream.views(1), stream.views(BATCH)
    costs = [
        timed("single", lambda: predictor.predict(one)),
        timed("batch", lambda: predictor.predict(many)),
        summarised("learn", stream.learned_ms),
        summarised("step", stream.stepped_ms),
    ]
    if options.json:
        print(json.dumps({"costs": [asdict(c) for c in costs], "memory": [asdict(early), asdict(late)]}))
    else:
        for cost in costs:
            print(f"{cost.call:8} median {cost.median_ms:7.3f} ms   p99 {cost.p99_ms:7.3f} ms")
        for memory in (early, late):
            print(
                f"after {memory.finished:7d} endings: saved state {memory.saved_bytes / 1e6:6.2f} MB, "
                f"process {memory.resident_bytes / 1e6:6.1f} MB"
            )
    slow = [c.call for c in costs if c.median_ms > BOUND_MS.get(c.call, float("inf"))]
    if slow:
        raise SystemExit(f"above the bound: {', '.join(slow)}")
    if late.saved_bytes > 1.1 * early.saved_bytes:
        raise SystemExit(f"the saved state grew from {early.saved_bytes} to {late.saved_bytes} bytes")


if __name__ == "__main__":
    main()
