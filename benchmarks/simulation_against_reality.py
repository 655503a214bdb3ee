"""The simulator against live engines: the same trajectories under several presets, played both ways.

    python benchmarks/simulation_against_reality.py [--repeats 2] [--presets verl slime sticky autellix fix1]

Two workers of the embedded engine with two slots each roll out trajectories drawn from a recorded trace and
scaled (see ``live_scheduling.py``), with forced lengths, once per preset and repeat, in rotating order.
Before that the same engines are measured: step times per batch at two context lengths, prompts, aborts
(``live_calibration.py``), and what a step costs outside the engine, in a small rollout of other trajectories.
The simulator plays the same trajectories on that profile under the same settings of the control plane.

Reported per preset: the live makespan of each repeat and their mean, the simulated one and its error against
the mean; then the median and the worst error, and whether the simulator ranks the presets as live runs do.
Two presets whose live means differ by no more than the noise between repeats are a tie, which no ranking can
get wrong. ``--parts`` compares where the time of all trajectories went. About ten minutes on two quiet cores.
``--engine fake`` leaves engines out: it does nothing but wait, so that only its wait per token is measured.
What is compared then is everything else, and a busy machine disturbs it little.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import logging
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import structlog
from live_calibration import Calibration, calibrate
from live_scheduling import Plan as DrawPlan
from live_scheduling import Steps, collect, draw, kit, load_trace, request

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


@dataclass(frozen=True, slots=True)
class Compared:
    """One preset, both ways."""

    preset: str
    live_s: tuple[float, ...]
    """Makespan of each repeat."""
    simulated_s: float

    @property
    def mean_s(self) -> float:
        """Live."""
        return statistics.mean(self.live_s)

    @property
    def error(self) -> float:
        """Of the simulation, relative."""
        return self.simulated_s / self.mean_s - 1.0


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
    """The fake engine waits before each token, whatever else runs and whatever came before."""
    steps = [step for record in records for step in record.steps]
    token_s = sum(step.decode_s for step in steps) / sum(step.output_tokens - 1 for step in steps)
    times = EngineTimes(
        tp_degree=1,
        contexts=(0.0,),
        profiles=(DegreeProfile.measured(1, [(batch, token_s) for batch in range(1, slots + 1)]),),
        prefill_tokens_per_s=1e6,
        slots=slots,
    )
    return Calibration(times, prefill_request_s=0.0, request_s=0.0, abort_s=0.0)


def profile_csv(calibration: Calibration, model: str) -> str:
    """The step times as a profile for what plans by length: at the shorter context."""
    times = calibration.times
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
    calibration: Calibration,
    step_overhead_s: float,
    preset: str,
) -> SimulationResult:
    """The same trajectories and settings, on engines as they were measured."""
    hardware = Hardware(
        gpus=WORKERS,
        engines=(calibration.times,),
        rules=EngineRules(
            prefill=PrefillMode.MIXED,
            chunk_tokens=CHUNK_TOKENS,
            prefill_request_s=calibration.prefill_request_s,
            request_s=calibration.request_s,
            abort_s=calibration.abort_s,
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


def ranking(compared: Sequence[Compared], noise: float) -> tuple[list[str], int, int]:
    """Sentences about pairs in the wrong order, how many pairs are ties, and how many there are.

    ``noise`` is the relative difference between two live means below which they tell nothing.
    """
    wrong, ties, pairs = [], 0, 0
    for one, other in itertools.combinations(compared, 2):
        pairs += 1
        if abs(one.mean_s / other.mean_s - 1.0) <= noise:
            ties += 1
        elif (one.mean_s < other.mean_s) is not (one.simulated_s < other.simulated_s):
            wrong.append(
                f"{one.preset} against {other.preset}: live {one.mean_s:.2f} s and {other.mean_s:.2f} s, "
                f"simulated {one.simulated_s:.2f} s and {other.simulated_s:.2f} s"
            )
    return wrong, ties, pairs


def live_noise(compared: Sequence[Compared]) -> float:
    """Relative difference between two means that repeats alone explain, for two thirds of such pairs.

    From the spread within each preset, pooled; a difference of two means of ``n`` has twice their variance.
    """
    squares, freedom, repeats = 0.0, 0, 1
    for one in compared:
        repeats = len(one.live_s)
        squares += sum((seconds / one.mean_s - 1.0) ** 2 for seconds in one.live_s)
        freedom += repeats - 1
    return float((2 * squares / freedom / repeats) ** 0.5) if freedom else 0.0


def report(compared: Sequence[Compared]) -> str:
    """The table and what follows from it."""
    lines = [f"{'preset':16}{'live s (each repeat)':28}{'mean':>8}{'simulated':>11}{'error':>9}"]
    for one in compared:
        repeats = " ".join(f"{seconds:.2f}" for seconds in one.live_s)
        lines.append(f"{one.preset:16}{repeats:28}{one.mean_s:8.2f}{one.simulated_s:11.2f}{one.error:+9.1%}")
    errors = [abs(one.error) for one in compared]
    noise = live_noise(compared)
    wrong, ties, pairs = ranking(compared, noise)
    lines.append(f"error: median {statistics.median(errors):.1%}, worst {max(errors):.1%}")
    lines.append(f"noise between two live means: {noise:.1%}")
    lines.append(f"ranking: {pairs} pairs, {ties} ties, {len(wrong)} in the wrong order")
    return "\n".join([*lines, *(f"  {sentence}" for sentence in wrong)])


def parts(records: Sequence[Trajectory], result: SimulationResult) -> str:
    """Where the time of all trajectories went, live and simulated."""
    live: Mapping[str, float] = {
        "queue": sum(r.timing.queue for r in records),
        "prefill": sum(r.timing.prefill for r in records),
        "decode": sum(r.timing.decode_base + r.timing.interference for r in records),
        "preemption": sum(r.timing.preemption for r in records),
        "tools": sum(r.timing.tool_queue + r.timing.tool_cold + r.timing.tool_run for r in records),
        "overhead": sum(r.timing.coordinator + r.timing.engine_stall for r in records),
    }
    all_parts = [outcome.parts for outcome in result.outcomes]
    simulated: Mapping[str, float] = {
        "queue": sum(p.queue_s for p in all_parts),
        "prefill": sum(p.prefill_s for p in all_parts),
        "decode": sum(p.decode_base_s + p.interference_s for p in all_parts),
        "preemption": sum(p.preemption_s for p in all_parts),
        "tools": sum(p.tool_queue_s + p.tool_cold_s + p.tool_run_s for p in all_parts),
        "overhead": sum(p.overhead_s for p in all_parts),
    }
    cached = sum(step.cached_tokens for record in records for step in record.steps)
    prompts = sum(step.prompt_tokens for record in records for step in record.steps)
    computed = sum(outcome.computed_tokens for outcome in result.outcomes)
    told = " ".join(f"{name} {live[name]:.1f}/{simulated[name]:.1f}" for name in live)
    return f"    live/simulated s: {told}; computed tokens {prompts - cached}/{computed}"


async def run_all(options: argparse.Namespace, setup: Setup) -> list[Compared]:
    """Calibrate, roll out, simulate."""

    def say(text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)

    plan = DrawPlan(setup.slots, setup.tokens, setup.tool_mean_s, setup.predictor, setup.engine, setup.seed)
    trace = load_trace(options.traces, options.trace)
    work = draw(trace, setup.trajectories, plan, 0)
    small = draw(trace, setup.trajectories, replace(plan, tokens=setup.tokens // 4), 1)
    live: dict[str, list[list[Trajectory]]] = {preset: [] for preset in options.presets}
    with tempfile.TemporaryDirectory(prefix="heddle-reality-") as name:
        folder = Path(name)
        engine = await kit(plan, config(setup, options.presets[0], folder / "kit", None))
        first = options.presets[0]
        if setup.engine == "fake":
            records = await roll_out(config(setup, first, folder / "wait", None), engine, small)
            calibration = fake_calibration(setup.slots, records)
        else:
            calibration = await calibrate(
                engine,
                workers=WORKERS,
                slots=setup.slots,
                contexts=CONTEXTS,
                rounds=options.rounds,
                seed=setup.seed,
                say=say,
            )
        say(describe(calibration))
        profile = folder / "profile.csv"
        profile.write_text(profile_csv(calibration, engine.model))
        for preset in options.presets:  # planners are compiled at their first use, which takes a while
            settings = config(setup, preset, folder, profile)
            play(setup, settings, unrecorded(small), calibration, 0.0, preset)
        records = await roll_out(config(setup, first, folder / "small", profile), engine, small)
        step_overhead_s = overhead_s(records)
        say(f"a step costs {1000 * step_overhead_s:.1f} ms outside engines and tools")
        for repeat in range(options.repeats):
            turn = repeat % len(options.presets)
            for preset in [*options.presets[turn:], *options.presets[:turn]]:
                settings = config(setup, preset, folder / f"{preset}-{repeat}", profile)
                records = await roll_out(settings, engine, work)
                live[preset].append(records)
                say(f"{preset}, repeat {repeat + 1}: {makespan_s(records):.2f} s")
        compared = []
        for preset, repeats in live.items():
            settings = config(setup, preset, folder / preset, profile)
            workload = recorded(work, repeats[0])
            result = play(setup, settings, workload, calibration, step_overhead_s, preset)
            seconds = tuple(makespan_s(records) for records in repeats)
            compared.append(Compared(preset, seconds, result.makespan_s))
            if options.parts:
                print(preset)
                print("\n".join(parts(records, result) for records in repeats), flush=True)
    return compared


def makespan_s(records: Sequence[Trajectory]) -> float:
    """All were submitted at once."""
    return max(record.timing.wall for record in records)


def describe(calibration: Calibration) -> str:
    """What was measured, in a line."""
    times = calibration.times
    steps = "; ".join(
        f"context {context:g}: " + " ".join(f"{1000 * s:.1f}" for s in profile.step_seconds)
        for context, profile in zip(times.contexts, times.profiles, strict=True)
    )
    return (
        f"ms per step by batch: {steps}; request {1000 * calibration.request_s:.1f} ms; prefill "
        f"{1000 * calibration.prefill_request_s:.1f} ms and {times.prefill_tokens_per_s:.0f} tokens/s; "
        f"abort {1000 * calibration.abort_s:.1f} ms"
    )


def main() -> None:
    """Run, print, and keep the figures in a file if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", type=Path, default=Path(__file__).parent / "traces")
    parser.add_argument("--trace", default="coding_agent")
    parser.add_argument("--presets", nargs="+", default=list(PRESETS))
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2, help="of the calibration")
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
