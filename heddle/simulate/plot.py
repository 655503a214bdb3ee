"""Charts of simulations: who is active, who is done, and what each worker did.

matplotlib is optional (``heddle[plot]``) and imported only here, when a chart is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from heddle.simulate.result import SimulationResult

DPI = 150
MOST_SPANS = 20_000
"""Of one Gantt chart; beyond it the shortest spans, which nobody could see, are left out."""


def plot(results: Sequence[SimulationResult], path: Path) -> None:
    """Draw to a PNG file: two charts of all results, then a Gantt chart of each, one lane a worker.

    The results are of one workload; Gantt charts need their spans. Raises ``ImportError`` without matplotlib
    and ``OSError`` as files do.
    """
    from matplotlib.figure import Figure  # no pyplot: nothing global, and no display is asked for

    heights = [3.0, *(1.0 + 0.25 * min(len(result.workers), 16) for result in results)]
    figure = Figure(figsize=(11, sum(heights)), layout="constrained")
    figure.suptitle(f"{results[0].workload}, seed {results[0].seed}")
    grid = figure.add_gridspec(len(heights), 2, height_ratios=heights)
    active, done = figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[0, 1])
    for result in results:
        _draw_ends(active, done, result)
    for axes, title in ((active, "active trajectories"), (done, "share of trajectories done")):
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("seconds")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    active.legend(fontsize=8)
    longest = max(result.makespan_s for result in results)
    for row, result in enumerate(results, 1):
        _draw_gantt(figure.add_subplot(grid[row, :]), result, longest)
    figure.savefig(path, dpi=DPI, format="png")


def _draw_ends(active: Any, done: Any, result: SimulationResult) -> None:
    """How many are active, and what share is done, over time. ``Any``: matplotlib has no types."""
    began = min(outcome.arrived_at for outcome in result.outcomes)
    changes = sorted(
        [(outcome.arrived_at - began, 1) for outcome in result.outcomes]
        + [(outcome.finished_at - began, -1) for outcome in result.outcomes]
    )
    times, counts, count = [0.0], [0], 0
    for time, change in changes:
        count += change
        times.append(time)
        counts.append(count)
    active.step(times, counts, where="post", label=result.configuration)
    ends = sorted(outcome.finished_at - began for outcome in result.outcomes)
    done.step(ends, [(index + 1) / len(ends) for index in range(len(ends))], where="post")


def _draw_gantt(axes: Any, result: SimulationResult, until_s: float) -> None:
    """Spans by worker; the longest trajectory stands out."""
    began = min(outcome.arrived_at for outcome in result.outcomes)
    longest = result.longest.trajectory_id
    lanes = {worker.worker_id: lane for lane, worker in enumerate(result.workers)}
    spans = sorted(result.spans, key=lambda span: span.began_at - span.ended_at)[:MOST_SPANS]
    for colour, alpha, mine in (("tab:blue", 0.15, False), ("tab:red", 0.9, True)):
        bars: dict[int, list[tuple[float, float]]] = {}
        for span in spans:
            if (span.trajectory_id == longest) is mine:
                bar = (span.began_at - began, span.ended_at - span.began_at)
                bars.setdefault(lanes[span.worker_id], []).append(bar)
        for lane, row in bars.items():
            axes.broken_barh(row, (lane - 0.4, 0.8), facecolors=colour, alpha=alpha, linewidth=0)
    axes.set_yticks(
        range(len(lanes)), [f"{w.worker_id} (tp{w.tp_degree})" for w in result.workers], fontsize=7
    )
    axes.invert_yaxis()
    axes.set_xlim(0, until_s)
    axes.set_title(
        f"{result.configuration}: {result.makespan_s:,.1f} s; red: the longest trajectory", fontsize=9
    )
