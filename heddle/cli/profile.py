"""``heddle profile``: measure this machine's engine, write the table for ``heddle plan`` and a plot."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from rich.table import Table

from heddle.cli.logs import log_to_stderr
from heddle.cli.output import ExitCode, Output, check_writable
from heddle.cli.plan import parse_numbers
from heddle.cli.plotting import can_plot
from heddle.cli.signals import interrupts, run_interruptible
from heddle.config import HeddleConfig
from heddle.engines.embedded.launcher import usable_cores
from heddle.planning.profile import Profile
from heddle.profiling.measured import MeasuredDegree, Subject, to_csv
from heddle.profiling.plot import plot
from heddle.profiling.sweep import Sweep, SweepPlan, powers_of_two

PROMPT_SEED = 0
LOOK_S = 0.5
"""How long the machine is watched before anything starts."""
BUSY_SHARE = 0.2
"""Of all cores; more than this in the hands of others deserves a word."""
SETTLED = 0.2
"""A median this far above the least, relative, is noise."""


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """What was typed; ``None`` was not given."""

    out: Path
    plot: Path | None
    degrees: str | None
    batches: str | None
    context: int
    rounds: int
    gpu: str


def profile(config: HeddleConfig, options: ProfileOptions, output: Output) -> int:
    """Measure, write the files and show the table. Raises ``ConfigError`` for what cannot be measured."""
    sweep_plan = plan_sweep(config, options)
    subject = Subject(options.gpu, Path(config.engine.model).stem, options.context)
    picture = options.out.with_suffix(".png") if options.plot is None else options.plot
    for option, path in (("--out", options.out), ("--plot", picture)):
        check_writable(path, option)
    log_to_stderr(config)
    warn_if_busy(output)
    began_at = time.monotonic()
    measured = run_interruptible(_measure(config, sweep_plan, output))
    options.out.write_text(to_csv(measured, subject), encoding="utf-8")
    drawn = draw(measured, subject, picture, output)
    took_s = time.monotonic() - began_at
    unsettled = [f"{tp}/{batch}" for tp, batch in unsettled_points(measured)]
    if unsettled:
        output.note(f"the machine was not quiet; measure again for degree/batch {', '.join(unsettled)}")
    files = {"csv": str(options.out), "plot": None if drawn is None else str(drawn)}
    if output.json:
        output.document({"files": files, "took_s": took_s, **document(measured, subject)})
    else:
        output.text(measured_table(measured))
        output.text(", ".join(name for name in files.values() if name) + f" ({took_s:.0f} s)")
    return ExitCode.OK


def warn_if_busy(output: Output) -> None:
    """Say so where others use the cores that are to be measured."""
    busy = psutil.cpu_percent(interval=LOOK_S) / 100
    if busy > BUSY_SHARE:
        output.note(f"other programs use {busy:.0%} of this machine: step times will be too long")


def draw(measured: Sequence[MeasuredDegree], subject: Subject, picture: Path, output: Output) -> Path | None:
    """The plot, or a word on what it needs."""
    if not can_plot():
        output.note(f"{picture} was not drawn: that needs matplotlib, pip install 'heddle[plot]'")
        return None
    plot(measured, subject, picture)
    return picture


def plan_sweep(config: HeddleConfig, options: ProfileOptions) -> SweepPlan:
    """What the options say to measure, checked against the engine's room."""
    slots = config.engine.slots
    degrees = parse_numbers(options.degrees, "--degrees") or powers_of_two(usable_cores())
    batches = parse_numbers(options.batches, "--batches") or powers_of_two(slots)
    return SweepPlan(
        degrees=tuple(sorted(set(degrees))),
        batches=tuple(sorted(set(batches))),
        slots=slots,
        context_tokens=options.context,
        rounds=options.rounds,
        room_tokens=config.engine.context_tokens,
    )


async def _measure(config: HeddleConfig, sweep_plan: SweepPlan, output: Output) -> tuple[MeasuredDegree, ...]:
    from heddle.engine_kits import engine_kit  # imported late: it loads every adapter

    with interrupts():
        kit = await engine_kit(config)
        sweep = Sweep(
            kit.launcher,
            kit.tokenizer,
            sweep_plan,
            log_dir=config.data_dir / "logs",
            progress=output.note,
            seed=PROMPT_SEED,
        )
        return await sweep.run()


def unsettled_points(measured: Sequence[MeasuredDegree]) -> list[tuple[int, int]]:
    """Degree and batch of the points whose samples lie too far apart to be repeated."""
    return [
        (degree.tp_degree, point.batch)
        for degree in measured
        for point in degree.points
        if point.spread_s[1] > (1 + SETTLED) * point.spread_s[0]
    ]


def document(measured: Sequence[MeasuredDegree], subject: Subject) -> dict[str, object]:
    """The profile for programs; ``step_seconds`` as planners use them."""
    degrees = tuple(degree.profile() for degree in measured)
    return asdict(Profile(subject.gpu, subject.model, subject.context_tokens, degrees))


def measured_table(measured: Sequence[MeasuredDegree]) -> Table:
    """The profile for people, one line for each point."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in (
        "tp",
        "batch",
        "step (ms)",
        "F",
        "median, upper quartile (ms)",
        "tokens/s",
        "prefill tokens/s",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for degree in measured:
        monotone = degree.profile()
        for point, seconds in zip(degree.points, monotone.step_seconds, strict=True):
            _, middle, high = point.spread_s
            table.add_row(
                str(degree.tp_degree),
                str(point.batch),
                f"{1000 * seconds:.2f}",
                f"{seconds / monotone.token_seconds:.2f}",
                f"{1000 * middle:.2f}, {1000 * high:.2f}",
                f"{point.batch / seconds:.0f}",
                f"{degree.prefill_tokens_per_s:.0f}",
            )
    return table
