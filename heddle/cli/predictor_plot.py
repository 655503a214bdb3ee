"""The calibration plot of predictors. matplotlib is optional (``heddle[plot]``) and imported only here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from heddle.errors import ConfigError
from heddle.predict.evaluation.report import PredictorReport

DPI = 150


def plot(reports: Sequence[PredictorReport], path: Path) -> None:
    """Promised against true shares, and rank correlation by step. Raises ``ConfigError``."""
    try:
        from matplotlib.figure import Figure
    except ImportError as exc:
        raise ConfigError("a plot needs the extra 'plot': pip install heddle[plot]") from exc
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    promised, ranks = figure.subplots(1, 2)
    promised.plot((0, 1), (0, 1), color="grey", linewidth=1, linestyle="--")
    for one in reports:
        if one.calibration:
            levels, shares = list(one.calibration), list(one.calibration.values())
            promised.plot(levels, shares, marker="o", label=one.predictor)
        steps = {step: scored.spearman for step, scored in one.by_step.items()}
        ranks.plot(list(steps), list(steps.values()), marker="o", label=one.predictor)
    promised.set_xlabel("level of the quantile")
    promised.set_ylabel("share of true lengths at or below it")
    ranks.set_xlabel("finished steps")
    ranks.set_ylabel("Spearman's rank correlation")
    for axes in (promised, ranks):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    try:
        figure.savefig(path, dpi=DPI, format="png")
    except OSError as exc:
        raise ConfigError(f"cannot write {path}: {exc}") from exc
