"""Live rollouts beside their simulations: the table, the order of presets, and where the time went."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from heddle.records import Trajectory
from heddle.simulate.result import SimulationResult


@dataclass(frozen=True, slots=True)
class Compared:
    """One preset, both ways."""

    preset: str
    live_s: tuple[float, ...]
    """Makespan of each repeat."""
    simulated_s: tuple[float, ...]
    """The same, each on what was measured around its repeat."""

    @property
    def live_median_s(self) -> float:
        """Of the repeats."""
        return statistics.median(self.live_s)

    @property
    def simulated_median_s(self) -> float:
        """The same."""
        return statistics.median(self.simulated_s)

    @property
    def error(self) -> float:
        """Of the simulated median, relative."""
        return self.simulated_median_s / self.live_median_s - 1.0


def ranking(compared: Sequence[Compared], noise: float) -> tuple[list[str], int, int]:
    """Sentences about pairs in the wrong order, how many pairs are ties, and how many there are.

    ``noise`` is the relative difference between two live medians below which they tell nothing.
    """
    wrong, ties, pairs = [], 0, 0
    for one, other in itertools.combinations(compared, 2):
        pairs += 1
        if abs(one.live_median_s / other.live_median_s - 1.0) <= noise:
            ties += 1
        elif (one.live_median_s < other.live_median_s) is not (
            one.simulated_median_s < other.simulated_median_s
        ):
            wrong.append(
                f"{one.preset} against {other.preset}: "
                f"live {one.live_median_s:.2f} s and {other.live_median_s:.2f} s, "
                f"simulated {one.simulated_median_s:.2f} s and {other.simulated_median_s:.2f} s"
            )
    return wrong, ties, pairs


def live_noise(compared: Sequence[Compared]) -> float:
    """Relative difference between two presets that repeats alone explain, for two thirds of such pairs.

    From the spread within each preset, pooled, as if medians were means: the difference of two means of ``n``
    has twice their variance.
    """
    squares, freedom, repeats = 0.0, 0, 1
    for one in compared:
        repeats = len(one.live_s)
        squares += sum((seconds / one.live_median_s - 1.0) ** 2 for seconds in one.live_s)
        freedom += repeats - 1
    return float((2 * squares / freedom / repeats) ** 0.5) if freedom else 0.0


def report(compared: Sequence[Compared]) -> str:
    """The table and what follows from it."""
    lines = [f"{'preset':16}{'live s (each repeat)':28}{'median':>8}{'simulated':>11}{'error':>9}"]
    for one in compared:
        repeats = " ".join(f"{seconds:.2f}" for seconds in one.live_s)
        lines.append(
            f"{one.preset:16}{repeats:28}{one.live_median_s:8.2f}{one.simulated_median_s:11.2f}{one.error:+9.1%}"
        )
    errors = [abs(one.error) for one in compared]
    noise = live_noise(compared)
    wrong, ties, pairs = ranking(compared, noise)
    lines.append(f"error: median {statistics.median(errors):.1%}, worst {max(errors):.1%}")
    lines.append(f"noise between two live medians: {noise:.1%}")
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
    return f"live/simulated s: {told}; computed tokens {prompts - cached}/{computed}"
