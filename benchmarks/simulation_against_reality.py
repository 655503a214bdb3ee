"""The simulator against live engines: the same trajectories under several presets, played both ways.

    python benchmarks/simulation_against_reality.py [--repeats 3] [--presets verl slime sticky autellix fix1]

Two workers of the embedded engine with two slots each roll out trajectories drawn from a recorded trace and
scaled (see ``live_scheduling.py``), with forced lengths, once per preset and repeat, in rotating order.
Before and after each repeat the same engines are measured: step times per batch at two context lengths,
prompts and aborts (``live_calibration.py``), and what a step costs outside the engine, in a small rollout.
The simulator plays the same trajectories on what was measured, under the same settings of the control plane.

Reported per preset: the live makespan of each repeat and their median, the simulated median and its error;
then the median and the worst error, and whether the simulator ranks the presets as live runs do. Two presets
whose live medians differ by no more than the noise between repeats are a tie, which no ranking can get wrong.
``--parts`` compares where the time of all trajectories went. About ten minutes on two quiet cores.
``--engine fake`` leaves engines out: it does nothing but wait, so that only its wait per token is measured.
What is compared then is everything else, and a busy machine disturbs it little.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import structlog
from live_calibration import Calibration, Samples, calibration, measure
from live_scheduling import Plan as DrawPlan
from live_scheduling import Steps, collect, draw, kit, load_trace, request
from reality_report import Compared, parts, report

from heddle.app import open_coordinator, plane_settings
from heddle.config import HeddleConfig, parse_config
from heddle.coordinator.assembly import EngineKit
from heddle.planning.profile import DegreeProfile
from heddle.presets import find_preset
from heddle.profiling.measured import MeasuredDegree, MeasuredPoint, Subject, to_csv
from heddle.records import Trajectory
from heddle.simulate.hardware import EngineRules, EngineTimes, Hardware, PrefillMode
from heddle.simulate.options import SimulationOptions
from heddle.simulate.result import SimulationResult
from heddle.simulate.simulator import simulate
from heddle.simulate.workload import Workload, WorkStep, WorkTrajectory
from heddle.types import GroupId, TrajectoryId

WORKERS = 2
PRESETS = ("verl", "slime", "sticky", "autellix", "fix1")
CONTEXTS = (64, 320)
CHUNK_TOKENS = 128
"""Of the embedded engine's servers."""
CONTEXT_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class Setup:
    """What is run, live and simulated."""

    slots: int
    trajectories: int
    tokens: int
    tool_mean_s: float
    predictor: str
    engine: str
    seed: int


def config(setup: Setup, preset: str, data_dir: Path, profile: Path | None) -> HeddleConfig:
    """Two workers of one thread, under the choices of a preset."""
    choices = {name: value for name, value in find_preset(preset).choices.items() if name != "pool"}
    return parse_config(
        {
            "data_dir": data_dir,
            "log_level": "error",
            "engine": {
                "kind": setup.engine,
                "pool": "1+1",
                "slots": setup.slots,
                "context_tokens": CONTEXT_TOKENS,
            },
            "tools": {"concurrency": 1024},
            "decisions": {
                "predictor": setup.predictor,
                "seed": setup.seed,
                "profile": profile,
                **choices,
                "allocator": "fixed",
            },
        }
    )


async def roll_out(settings: HeddleConfig, engine: EngineKit, work: Sequence[Steps]) -> list[Trajectory]:
    """Submit when both workers are up; returns every record."""
    async with open_coordinator(settings, kit=engine) as coordinator:
        while any(worker.phase != "ready" for worker in await coordinator.workers()):
            await asyncio.sleep(0.05)
        # Always the same name: trajectories are named after their batch, and some placers go by names.
        status, _ = await coordinator.submit(request(work).model_copy(update={"batch_id": "reality"}))
        return await collect(coordinator, status.batch_id)


def recorded(work: Sequence[Steps], records: Sequence[Trajectory]) -> Workload:
    """What the live runs did, in tokens: prompts and observations as they were counted there.

    All first prompts are the same text, so that they are one group's.
    """
    by_prompt = {int(record.prompt_id.removeprefix("p")): record for record in records}
    trajectories = []
    for index in range(len(work)):
        record = by_prompt[index]
        steps = []
        context = 0
        for step, (tokens, seconds) in zip(record.steps, work[index], strict=True):
            last = step.step_index == len(work[index]) - 1
            steps.append(
                WorkStep(
                    prompt_tokens=step.prompt_tokens - context,
                    output_tokens=tokens,
                    tool_names=() if last else ("wait",),
                    tool_seconds=0.0 if last else seconds,
                )
            )
            context = step.prompt_tokens + step.output_tokens
        trajectories.append(WorkTrajectory(TrajectoryId(record.trajectory_id), GroupId("all"), tuple(steps)))
    return Workload("recorded", tuple(trajectories))


def unrecorded(work: Sequence[Steps]) -> Workload:
    """The same with prompts and observations of a token, which nobody has counted yet."""
    return Workload(
        "unrecorded",
        tuple(
            WorkTrajectory(
                TrajectoryId(f"t{index}"),
                GroupId("all"),
                tuple(WorkStep(1, tokens, ("wait",), seconds) for tokens, seconds in steps),
            )
            for index, steps in enumerate(work)
        ),
    )


def overhead_s(records: Sequence[Trajectory]) -> float:
    """Of one step outside engines and tools, in the median trajectory."""
    return statistics.median(record.timing.coordinator / len(record.steps) for record in records)


def fake_calibration(slots: int, records: Sequence[Trajectory]) -> Calibration:
    """The fake engine waits before each token, the first included, whatever else runs."""
    token_s = statistics.median(
        step.decode_s / step.output_tokens for record in records for step in record.steps
    )
    times = EngineTimes(
        tp_degree=1,
        contexts=(0.0,),
        profiles=(DegreeProfile.measured(1, [(batch, token_s) for batch in range(1, slots + 1)]),),
        prefill_tokens_per_s=1e6,
        slots=slots,
    )
    return Calibration(times, prefill_request_s=0.0, request_s=0.0, abort_s=0.0)


def profile_csv(measured: Calibration, model: str) -> str:
    """The step times as a profile for what plans by length: at the shorter context."""
    times = measured.times
    points = zip(times.profiles[0].batches, times.profiles[0].step_seconds, strict=True)
    degree = MeasuredDegree(
        tp_degree=1,
        slots=times.slots or 1,
        points=tuple(MeasuredPoint(batch, (seconds,)) for batch, seconds in points),
        prefill_tokens_per_s=times.prefill_tokens_per_s,
        kv_capacity_tokens=None,
    )
    return to_csv([degree], Subject("cpu", model, int(times.contexts[0])))


def play(
    setup: Setup,
    settings: HeddleConfig,
    workload: Workload,
    measured: Calibration,
    step_overhead_s: float,
    preset: str,
) -> SimulationResult:
    """The same trajectories and settings, on engines as they were measured."""
    hardware = Hardware(
        gpus=WORKERS,
        engines=(measured.times,),
        rules=EngineRules(
            prefill=PrefillMode.MIXED,
            chunk_tokens=CHUNK_TOKENS,
            prefill_request_s=measured.prefill_request_s,
            request_s=measured.request_s,
            abort_s=measured.abort_s,
            share_running=False,
        ),
    )
    return simulate(
        workload,
        plane_settings(settings),
        hardware,
        seed=setup.seed,
        configuration=preset,
        options=SimulationOptions(overhead_s=step_overhead_s),
    )


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured between two repeats."""

    samples: Samples | None
    """``None`` of the fake engine."""
    records: list[Trajectory]
    """Of the small rollout."""


class Comparison:
    """Measures and rolls out in turn, so that what drifts meets both."""

    def __init__(self, options: argparse.Namespace, setup: Setup, engine: EngineKit, folder: Path) -> None:
        self._options = options
        self._setup = setup
        self._engine = engine
        self._folder = folder
        plan = draw_plan(setup)
        trace = load_trace(options.traces, options.trace)
        self._work = draw(trace, setup.trajectories, plan, 0)
        self._small = draw(trace, setup.trajectories, replace(plan, tokens=setup.tokens // 4), 1)
        self._rounds: list[Measured] = []
        self._live: dict[str, list[list[Trajectory]]] = {preset: [] for preset in options.presets}
        self._profile = folder / "profile.csv"

    async def run(self) -> list[Compared]:
        """Everything; prints what it does."""
        await self._measure()
        self._profile.write_text(profile_csv(self._calibration(0), self._engine.model))
        for (
            preset
        ) in self._options.presets:  # planners are compiled at their first use, and that takes a while
            self._play(preset, unrecorded(self._small), 0)
        for repeat in range(self._options.repeats):
            await self._repeat(repeat)
            await self._measure()
        return [self._compare(preset) for preset in self._options.presets]

    async def _measure(self) -> None:
        say("measuring")
        samples = None
        if self._setup.engine != "fake":
            samples = await measure(
                self._engine,
                workers=WORKERS,
                slots=self._setup.slots,
                contexts=CONTEXTS,
                repeats=self._options.samples,
                seed=self._setup.seed + 100 * len(self._rounds),
            )
        folder = self._folder / f"small-{len(self._rounds)}"
        records = await roll_out(config(self._setup, "sticky", folder, None), self._engine, self._small)
        self._rounds.append(Measured(samples, records))
        say(describe(self._calibration(-1)))
        say(f"a step costs {1000 * overhead_s(records):.1f} ms outside engines and tools")

    async def _repeat(self, number: int) -> None:
        presets = self._options.presets
        turn = number % len(presets)
        for preset in [*presets[turn:], *presets[:turn]]:
            settings = config(self._setup, preset, self._folder / f"{preset}-{number}", self._profile)
            records = await roll_out(settings, self._engine, self._work)
            self._live[preset].append(records)
            say(f"{preset}, repeat {number + 1}: {makespan_s(records):.2f} s")

    def _calibration(self, repeat: int) -> Calibration:
        """From what was measured just before and just after a repeat; of -1, what was measured last."""
        around = self._around(repeat)
        if self._setup.engine == "fake":
            return fake_calibration(self._setup.slots, [r for one in around for r in one.records])
        samples = [one.samples for one in around if one.samples is not None]
        return calibration(samples, slots=self._setup.slots, contexts=CONTEXTS)

    def _around(self, repeat: int) -> list[Measured]:
        return self._rounds[-1:] if repeat < 0 else self._rounds[repeat : repeat + 2]

    def _play(self, preset: str, workload: Workload, repeat: int) -> SimulationResult:
        settings = config(self._setup, preset, self._folder / preset, self._profile)
        overhead = overhead_s([record for one in self._around(repeat) for record in one.records])
        return play(self._setup, settings, workload, self._calibration(repeat), overhead, preset)

    def _compare(self, preset: str) -> Compared:
        live, simulated = [], []
        for repeat, records in enumerate(self._live[preset]):
            result = self._play(preset, recorded(self._work, records), repeat)
            live.append(makespan_s(records))
            simulated.append(result.makespan_s)
            if self._options.parts:
                print(f"{preset}, repeat {repeat + 1}: {parts(records, result)}", flush=True)
        return Compared(preset, tuple(live), tuple(simulated))


async def run_all(options: argparse.Namespace, setup: Setup) -> list[Compared]:
    """Start, measure, roll out, simulate."""
    with tempfile.TemporaryDirectory(prefix="heddle-reality-") as name:
        folder = Path(name)
        engine = await kit(draw_plan(setup), config(setup, options.presets[0], folder / "kit", None))
        return await Comparison(options, setup, engine, folder).run()


def draw_plan(setup: Setup) -> DrawPlan:
    """How trajectories are drawn and scaled."""
    return DrawPlan(setup.slots, setup.tokens, setup.tool_mean_s, setup.predictor, setup.engine, setup.seed)


def say(text: str) -> None:
    """A line with the time."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def makespan_s(records: Sequence[Trajectory]) -> float:
    """All were submitted at once."""
    return max(record.timing.wall for record in records)


def describe(measured: Calibration) -> str:
    """What was measured, in a line."""
    times = measured.times
    steps = "; ".join(
        f"context {context:g}: " + " ".join(f"{1000 * s:.1f}" for s in profile.step_seconds)
        for context, profile in zip(times.contexts, times.profiles, strict=True)
    )
    return (
        f"ms per step by batch: {steps}; request {1000 * measured.request_s:.1f} ms; prefill "
        f"{1000 * measured.prefill_request_s:.1f} ms and {times.prefill_tokens_per_s:.0f} tokens/s; "
        f"abort {1000 * measured.abort_s:.1f} ms"
    )


def main() -> None:
    """Run, print, and keep the figures in a file if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", type=Path, default=Path(__file__).parent / "traces")
    parser.add_argument("--trace", default="coding_agent")
    parser.add_argument("--presets", nargs="+", default=list(PRESETS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--samples", type=int, default=1, help="of each batch in each round of measuring")
    parser.add_argument("--slots", type=int, default=2, help="of each of the two workers")
    parser.add_argument("--trajectories", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=1400, help="sampled in one rollout")
    parser.add_argument("--tool-mean-s", type=float, default=0.6)
    parser.add_argument("--predictor", default="oracle")
    parser.add_argument("--engine", choices=["embedded", "fake"], default="embedded")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--parts", action="store_true", help="compare where the time went")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    setup = Setup(
        options.slots,
        options.trajectories,
        options.tokens,
        options.tool_mean_s,
        options.predictor,
        options.engine,
        options.seed,
    )
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    compared = asyncio.run(run_all(options, setup))
    if options.json is not None:
        content = {"setup": asdict(setup), "compared": [asdict(one) for one in compared]}
        options.json.write_text(json.dumps(content, indent=1) + "\n")
    print(report(compared))


if __name__ == "__main__":
    main()
