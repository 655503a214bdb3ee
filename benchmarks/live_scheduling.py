"""Schedulers against each other on live engines: the same recorded lengths and tool times for each.

    python benchmarks/live_scheduling.py [--traces DIR] [--trace NAME] [--repeats 5] [--json FILE]
    heddle profile --out here.csv --degrees 1 --slots 2
    python benchmarks/live_scheduling.py --arms fcfs progressive moving heddle --profile here.csv

Two workers of the embedded engine, two slots each, and 2 and 4 times as many trajectories as slots. Each
repeat draws its trajectories from the trace and scales them: output tokens so that all together are
``--tokens``, tool times (cut at a minute) so that their mean is ``--tool-mean-s``. The longest tenth of the
trace is left out: one of them lasts longer than all others of a small draw together, and no order makes any
difference to it. All schedulers then run the same draw, in an order that rotates from repeat to repeat, each
on freshly started engines; the environment ``replay`` forces the lengths. Predictions are the oracle's, or
wrong on purpose with ``--predictor noisy_oracle``.

Beside schedulers two arms move trajectories, by transfer while their tools run (``migration = gated``), and
need a profile of these workers: ``moving`` is ``progressive`` with moves, ``heddle`` the preset with moves on
these two workers.

Reported: the makespan, and how long the longest trajectory waited for slots (its waits after preemptions
included). Medians, and medians of the ratios to ``fcfs`` in the same repeat; every cell in which a scheduler
loses to ``fcfs`` is named. About a quarter of an hour on two quiet cores. ``--engine fake`` tries it out.

A trace is ``NAME.jsonl`` or ``NAME.jsonl.gz`` in ``DIR``, as ``benchmarks/traces/README.md`` describes it;
where the steps of a line carry a ``turn``, each turn is a trajectory. Tool times that were not recorded count
as one second.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import logging
import math
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import structlog

from heddle.api.schemas import BatchRequest
from heddle.app import open_coordinator
from heddle.config import HeddleConfig, parse_config
from heddle.coordinator.assembly import EngineKit
from heddle.coordinator.service import Coordinator
from heddle.engine_kits import engine_kit
from heddle.engines.fake import FakeEngine, FakeLauncher, FakeModel
from heddle.presets import Choices, find_preset
from heddle.records import Trajectory, decode_trajectory
from heddle.scheduling import SCHEDULERS
from heddle.text.byte_tokenizer import TURN_END, ByteTokenizer

BASELINE = "fcfs"
MOVING = frozenset({"moving", "heddle"})
"""Arms that move trajectories."""
MOST_TOOL_S = 60.0
UNRECORDED_TOOL_S = 1.0
FEWEST_STEP_TOKENS = 4
MOST_STEPS = 16
SHARE_USED = 0.9
FAKE_TOKEN_S = 0.01

Steps = list[tuple[int, float]]
"""Output tokens and tool seconds of one trajectory."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run."""

    slots: int
    tokens: int
    tool_mean_s: float
    predictor: str
    engine: str
    seed: int
    profile: Path | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One rollout."""

    arm: str
    load: int
    repeat: int
    makespan_s: float
    longest_queue_s: float
    longest_tokens: int
    mean_finish_s: float
    preemptions: int
    moves: int
    moves_tried: int


def load_trace(directory: Path, name: str) -> list[Steps]:
    """Trajectories of 2 to ``MOST_STEPS`` steps, by length, without the longest."""
    plain = directory / f"{name}.jsonl"
    lines = (
        plain.read_bytes() if plain.exists() else gzip.decompress(plain.with_suffix(".jsonl.gz").read_bytes())
    )
    found = [
        [_step(step) for step in steps] for line in lines.splitlines() for steps in _turns(json.loads(line))
    ]
    usable = [steps for steps in found if 2 <= len(steps) <= MOST_STEPS]
    usable.sort(key=lambda steps: sum(tokens for tokens, _ in steps))
    return usable[: math.ceil(SHARE_USED * len(usable))]


def _turns(line: Mapping[str, Any]) -> Iterator[list[Mapping[str, Any]]]:
    for _, steps in groupby(line["steps"], key=lambda step: step.get("turn", 0)):
        yield list(steps)


def _step(step: Mapping[str, Any]) -> tuple[int, float]:
    seconds = step["tool_seconds"]
    return int(step["output_tokens"]), UNRECORDED_TOOL_S if seconds is None else min(seconds, MOST_TOOL_S)


def draw(trace: Sequence[Steps], size: int, plan: Plan, repeat: int) -> list[Steps]:
    """``size`` trajectories, scaled; the same for every scheduler of this repeat."""
    chosen = random.Random(f"{plan.seed}/{size}/{repeat}").sample(list(trace), size)
    per_token = plan.tokens / sum(tokens for steps in chosen for tokens, _ in steps)
    tools = [seconds for steps in chosen for _, seconds in steps[:-1]]
    per_second = plan.tool_mean_s / max(statistics.mean(tools), 1e-9)
    return [
        [
            (max(FEWEST_STEP_TOKENS, round(tokens * per_token)), seconds * per_second)
            for tokens, seconds in steps
        ]
        for steps in chosen
    ]


def decisions(plan: Plan, arm: str) -> dict[str, object]:
    """What an arm decides by; a scheduler stands for itself."""
    if arm == "moving":
        chosen = Choices(scheduler="progressive", migration="gated")
    elif arm == "heddle":
        chosen = {**find_preset("heddle").choices, "allocator": "fixed", "migration": "gated"}
    else:
        chosen = Choices(scheduler=arm)
    common: dict[str, object] = {"predictor": plan.predictor, "seed": plan.seed, "profile": plan.profile}
    return {**chosen, **common}


def config(plan: Plan, arm: str, data_dir: Path) -> HeddleConfig:
    """Two workers of one thread."""
    return parse_config(
        {
            "data_dir": data_dir,
            "log_level": "error",
            "engine": {"kind": plan.engine, "pool": "1+1", "slots": plan.slots, "context_tokens": 2048},
            "tools": {"concurrency": 1024},
            "decisions": decisions(plan, arm),
        }
    )


def request(work: Sequence[Steps]) -> BatchRequest:
    """Every trajectory is a prompt of its own."""
    prompts = [
        {"task": {"steps": [{"output_tokens": n, "tool_seconds": s} for n, s in steps]}} for steps in work
    ]
    return BatchRequest.model_validate(
        {
            "environment": "replay",
            "prompts": prompts,
            "limits": {"max_steps": MOST_STEPS, "max_tokens": 1 << 20},
            "sampling": {"temperature": 1.0, "seed": 1},
        }
    )


async def kit(plan: Plan, settings: HeddleConfig) -> EngineKit:
    """The engine; one kit serves all runs, and starts fresh processes for each."""
    if plan.engine == "embedded":
        return await engine_kit(settings)
    model = FakeModel(
        vocabulary=256, end_of_turn_id=TURN_END, token_delay_s=FAKE_TOKEN_S, context_tokens=2048
    )
    return EngineKit(FakeLauncher(model=model), ByteTokenizer(), FakeEngine.capabilities, "fake")


async def roll_out(plan: Plan, engine: EngineKit, arm: str, work: Sequence[Steps]) -> list[Trajectory]:
    """Submit when both workers are up; returns every record."""
    with tempfile.TemporaryDirectory(prefix="heddle-live-") as folder:
        async with open_coordinator(config(plan, arm, Path(folder)), kit=engine) as coordinator:
            while any(worker.phase != "ready" for worker in await coordinator.workers()):
                await asyncio.sleep(0.05)
            status, _ = await coordinator.submit(request(work))
            return await collect(coordinator, status.batch_id)


async def collect(coordinator: Coordinator, batch_id: str) -> list[Trajectory]:
    """All records of a batch, at its end."""
    records: list[Trajectory] = []
    cursor: str | None = None
    while True:
        page = await coordinator.trajectories(batch_id, after=cursor, limit=1000, wait_s=30.0)
        records += [decode_trajectory(record) for record in page.records]
        cursor = page.cursor
        if page.finished:
            return records


def judge(arm: str, load: int, repeat: int, work: Sequence[Steps], records: Sequence[Trajectory]) -> Run:
    """Figures of one rollout. Raises ``AssertionError`` where it did not generate what was recorded."""
    recorded = {f"p{index}": sum(tokens for tokens, _ in steps) for index, steps in enumerate(work)}
    assert {record.prompt_id: record.sampled_tokens for record in records} == recorded
    moves = [step.migration for record in records for step in record.steps if step.migration is not None]
    longest = max(records, key=lambda record: record.sampled_tokens)
    return Run(
        arm=arm,
        load=load,
        repeat=repeat,
        makespan_s=max(record.timing.wall for record in records),
        longest_queue_s=longest.timing.queue + longest.timing.preemption,
        longest_tokens=longest.sampled_tokens,
        mean_finish_s=statistics.mean(record.timing.wall for record in records),
        preemptions=sum(step.preemptions for record in records for step in record.steps),
        moves=sum(move.outcome == "moved" for move in moves),
        moves_tried=len(moves),
    )


def report(runs: Sequence[Run]) -> str:
    """The table, and the cells that are lost."""
    lines = [
        f"{'load':>5} {'arm':15}{'makespan':>10}{'ratio':>8}{'queue of longest':>18}{'ratio':>8}"
        f"{'mean finish':>13}{'preempted':>11}{'moved':>8}{'of':>6}"
    ]
    lost = []
    for load in dict.fromkeys(run.load for run in runs):
        for arm in dict.fromkeys(run.arm for run in runs):
            cell = [run for run in runs if (run.load, run.arm) == (load, arm)]
            base = {r.repeat: r for r in runs if (r.load, r.arm) == (load, BASELINE)}
            makespan = _median_ratio([(r.makespan_s, base[r.repeat].makespan_s) for r in cell])
            queue = _median_ratio([(r.longest_queue_s, base[r.repeat].longest_queue_s) for r in cell])
            lines.append(
                f"{load:4}x {arm:15}"
                f"{statistics.median(r.makespan_s for r in cell):9.2f}s{makespan:8.3f}"
                f"{statistics.median(r.longest_queue_s for r in cell):17.2f}s{queue:8.3f}"
                f"{statistics.median(r.mean_finish_s for r in cell):12.2f}s"
                f"{statistics.mean(r.preemptions for r in cell):11.1f}"
                f"{statistics.mean(r.moves for r in cell):8.1f}"
                f"{statistics.mean(r.moves_tried for r in cell):6.1f}"
            )
            lost += [f"{load}x {arm} makespan {makespan:.3f}"] * (makespan > 1.0)
            lost += [f"{load}x {arm} queue of the longest {queue:.3f}"] * (queue > 1.0)
    losing = "\n".join(f"  {cell}" for cell in lost) or "  none"
    return "\n".join(lines) + f"\nlosing to {BASELINE} (median ratio above 1):\n{losing}"


def _median_ratio(pairs: Sequence[tuple[float, float]]) -> float:
    return statistics.median(one / max(base, 1e-3) for one, base in pairs)


async def run_all(options: argparse.Namespace, plan: Plan) -> list[Run]:
    """Interleaved: every scheduler once in each load of each repeat, in rotating order."""
    trace = load_trace(options.traces, options.trace)
    runs: list[Run] = []
    with tempfile.TemporaryDirectory(prefix="heddle-live-") as folder:
        engine = await kit(plan, config(plan, BASELINE, Path(folder)))
    for repeat in range(options.repeats):
        turn = repeat % len(options.arms)
        for load in options.loads:
            work = draw(trace, load * 2 * plan.slots, plan, repeat)
            for arm in [*options.arms[turn:], *options.arms[:turn]]:
                records = await roll_out(plan, engine, arm, work)
                runs.append(judge(arm, load, repeat, work, records))
                print(f"{time.strftime('%H:%M:%S')} {runs[-1]}", flush=True)
    return runs


def main() -> None:
    """Run, print, and keep every run in a file if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", type=Path, default=Path(__file__).parent / "traces")
    parser.add_argument("--trace", default="coding_agent")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--loads", type=int, nargs="+", default=[2, 4], help="trajectories per slot")
    parser.add_argument("--arms", nargs="+", choices=[*SCHEDULERS, *MOVING], default=list(SCHEDULERS))
    parser.add_argument("--profile", type=Path, help="of one worker, as heddle profile writes it")
    parser.add_argument("--slots", type=int, default=2, help="of each of the two workers")
    parser.add_argument("--tokens", type=int, default=1400, help="sampled in one rollout")
    parser.add_argument("--tool-mean-s", type=float, default=0.6)
    parser.add_argument("--predictor", default="oracle")
    parser.add_argument("--engine", choices=["embedded", "fake"], default="embedded")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if BASELINE not in options.arms:
        parser.error(f"{BASELINE} must be among the arms")
    if options.profile is None and not MOVING.isdisjoint(options.arms):
        parser.error("moves are priced by a profile: --profile FILE")
    plan = Plan(
        slots=options.slots,
        tokens=options.tokens,
        tool_mean_s=options.tool_mean_s,
        predictor=options.predictor,
        engine=options.engine,
        seed=options.seed,
        profile=options.profile,
    )
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    runs = asyncio.run(run_all(options, plan))
    if options.json is not None:
        content = {"plan": asdict(plan), "trace": options.trace, "runs": [asdict(run) for run in runs]}
        options.json.write_text(json.dumps(content, indent=1, default=str) + "\n")
    print(report(runs))


if __name__ == "__main__":
    main()
