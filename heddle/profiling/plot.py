"""The plot of a profile: step time and throughput over the batch, a line for each degree.

matplotlib is optional (``heddle[plot]``) and imported only here, when a plot is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from heddle.profiling.measured import MeasuredDegree, Subject

DPI = 150


def plot(measured: Sequence[MeasuredDegree], subject: Subject, path: Path) -> None:
    """Draw to a PNG file. Raises ``ImportError`` without matplotlib and ``OSError`` as files do."""
    from matplotlib.figure import Figure  # no pyplot: nothing global, and no display is asked for
    from matplotlib.ticker import NullLocator

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    figure.suptitle(f"{subject.model} on {subject.gpu}, mean context {subject.context_tokens} tokens")
    steps, throughput = figure.subplots(1, 2)
    for degree in measured:
        profile = degree.profile()
        typical = [1000 * seconds for seconds in profile.step_seconds]
        low = [1000 * point.spread_s[0] for point in degree.points]
        high = [1000 * point.spread_s[2] for point in degree.points]
        label = f"degree {degree.tp_degree}"
        (line,) = steps.plot(profile.batches, typical, marker="o", label=label)
        steps.fill_between(profile.batches, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
        rates = [batch / s for batch, s in zip(profile.batches, profile.step_seconds, strict=True)]
        throughput.plot(profile.batches, rates, marker="o", label=label)
    steps.set_ylabel("time of a decoding step (ms)")
    steps.set_title("Step time; shaded: from the least to the upper quartile", fontsize=10)
    throughput.set_ylabel("tokens per second of the worker")
    throughput.set_title("Throughput", fontsize=10)
    batches = sorted({point.batch for degree in measured for point in degree.points})
    for axes in (steps, throughput):
        axes.set_xlabel("running batch")
        axes.set_xscale("log", base=2)
        axes.set_xticks(batches, [str(batch) for batch in batches])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=DPI, format="png")
