"""What a sweep brought home: samples by degree and batch, and what is made of them."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import quantiles

from heddle.planning.profile import DegreeProfile

COLUMNS = (
    *("gpu", "model", "tp", "batch", "context_len", "tpot_ms"),
    *("slots", "kv_capacity_tokens", "prefill_tokens_per_s"),
    *("low_ms", "median_ms", "high_ms", "samples"),
)
"""The last four are for people: the spread of what was seen, of which the table is made."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What was measured, as the table names it."""

    gpu: str
    model: str
    context_tokens: int
    """Mean context of a generation while it was timed."""


@dataclass(frozen=True, slots=True)
class MeasuredPoint:
    """One batch of one degree."""

    batch: int
    step_seconds: tuple[float, ...]
    """Samples, at least one; each the mean of a few neighbouring steps."""

    @property
    def typical_s(self) -> float:
        """The least sample: what else runs on the machine makes steps longer, never shorter."""
        return min(self.step_seconds)

    @property
    def spread_s(self) -> tuple[float, float, float]:
        """Least, median, upper quartile."""
        if len(self.step_seconds) == 1:
            return (self.step_seconds[0],) * 3
        _, middle, high = quantiles(self.step_seconds, n=4, method="inclusive")
        return min(self.step_seconds), middle, high


@dataclass(frozen=True, slots=True)
class MeasuredDegree:
    """All batches of one degree, ascending from 1."""

    tp_degree: int
    slots: int
    points: tuple[MeasuredPoint, ...]
    prefill_tokens_per_s: float
    kv_capacity_tokens: int | None
    """Tokens that the worker's KV pool holds; ``None`` where the engine does not tell."""

    def profile(self) -> DegreeProfile:
        """The monotone table that planners use."""
        return DegreeProfile.measured(
            self.tp_degree,
            [(point.batch, point.typical_s) for point in self.points],
            slots=self.slots,
            kv_capacity_tokens=self.kv_capacity_tokens,
            prefill_tokens_per_s=self.prefill_tokens_per_s,
        )


def to_csv(measured: Sequence[MeasuredDegree], subject: Subject) -> str:
    """The table as a file that ``parse_profiles`` reads; ``tpot_ms`` never falls as the batch grows."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for degree in measured:
        kv_tokens = "" if degree.kv_capacity_tokens is None else degree.kv_capacity_tokens
        worker = (degree.slots, kv_tokens, f"{degree.prefill_tokens_per_s:.1f}")
        for point, monotone_s in zip(degree.points, degree.profile().step_seconds, strict=True):
            key = (subject.gpu, subject.model, degree.tp_degree, point.batch, subject.context_tokens)
            seen = (*map(_ms, point.spread_s), len(point.step_seconds))
            writer.writerow((*key, _ms(monotone_s), *worker, *seen))
    return text.getvalue()


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.4f}"
