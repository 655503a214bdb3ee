"""Profiles as CSV: one row a measurement, columns ``gpu,model,tp,batch,context_len,tpot_ms``.

Optional columns: ``slots``, ``kv_capacity_tokens`` and ``prefill_tokens_per_s`` (of the worker, hence equal
in all rows of one degree); others are ignored. ``gpu``, ``model`` and ``context_len`` may be left out of the
file where it holds one of each. Everything that is wrong with a file is a ``ConfigError`` with its line.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from heddle.errors import ConfigError
from heddle.planning.profile import MAX_STEP_S, MIN_STEP_S, DegreeProfile, Profile

Value = TypeVar("Value")

REQUIRED = ("tp", "batch", "tpot_ms")
MAX_BATCH = 1_000_000
"""A batch or degree beyond this is a slip of the pen, and tables are as long as the batch."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One row of a file."""

    line: int
    gpu: str
    model: str
    tp_degree: int
    batch: int
    context_tokens: float
    step_seconds: float
    slots: int | None
    kv_capacity_tokens: int | None
    prefill_tokens_per_s: float | None


@dataclass(frozen=True, slots=True)
class ProfileTable:
    """All measurements of one file; ``source`` names it in messages."""

    source: str
    rows: tuple[Measurement, ...]

    def gpus(self) -> tuple[str, ...]:
        """The kinds of GPU there are, in order of appearance."""
        return tuple(dict.fromkeys(row.gpu for row in self.rows))

    def models(self) -> tuple[str, ...]:
        """The models there are, in order of appearance."""
        return tuple(dict.fromkeys(row.model for row in self.rows))

    def select(
        self, gpu: str | None = None, model: str | None = None, context_tokens: float | None = None
    ) -> Profile:
        """The profile of one GPU and model at one mean context length.

        ``gpu`` and ``model`` may be left out where the table holds one of each. Between two context
        lengths of the table step times are interpolated, outside them the nearest one is taken; without
        ``context_tokens`` the shortest one from 4,096 on. Raises ``ConfigError`` that lists what there is.
        """
        gpu = _choose("gpu", gpu, self.gpus(), self.source)
        rows = [row for row in self.rows if row.gpu == gpu]
        model = _choose("model", model, tuple(dict.fromkeys(row.model for row in rows)), self.source)
        rows = [row for row in rows if row.model == model]
        wanted = _default_context(rows) if context_tokens is None else context_tokens
        if not (math.isfinite(wanted) and wanted >= 0):
            raise ConfigError(f"the context length must be finite and not negative, got {wanted}")
        degrees = sorted({row.tp_degree for row in rows})
        by_degree = [[row for row in rows if row.tp_degree == degree] for degree in degrees]
        return Profile(gpu, model, wanted, tuple(self._degree(part, wanted) for part in by_degree))

    def _degree(self, rows: Sequence[Measurement], context_tokens: float) -> DegreeProfile:
        contexts = sorted({row.context_tokens for row in rows})
        below = max((c for c in contexts if c <= context_tokens), default=contexts[0])
        above = min((c for c in contexts if c >= context_tokens), default=contexts[-1])
        weight = 0.0 if above == below else (context_tokens - below) / (above - below)
        low, high = _curve(rows, below), _curve(rows, above)
        batches = sorted(low.keys() & high.keys())
        where = f"{self.source}, tp {rows[0].tp_degree}"
        if 1 not in batches:
            raise ConfigError(
                f"{where}: no row for batch 1 (line {rows[0].line} is the first of this degree)"
            )
        return DegreeProfile.measured(
            rows[0].tp_degree,
            [(batch, (1 - weight) * low[batch] + weight * high[batch]) for batch in batches],
            slots=_same("slots", [(row.line, row.slots) for row in rows], self.source),
            kv_capacity_tokens=_same(
                "kv_capacity_tokens", [(row.line, row.kv_capacity_tokens) for row in rows], self.source
            ),
            prefill_tokens_per_s=_same(
                "prefill_tokens_per_s", [(row.line, row.prefill_tokens_per_s) for row in rows], self.source
            ),
        )


def parse_profiles(text: str, *, source: str = "profile") -> ProfileTable:
    """The measurements in a CSV text. Raises ``ConfigError`` with the line of the first that is wrong."""
    reader = csv.DictReader(io.StringIO(text.removeprefix("\ufeff"), newline=""))
    try:
        columns = reader.fieldnames or ()
        missing = [name for name in REQUIRED if name not in columns]
        if missing:
            raise ConfigError(f"{source}, line 1: missing column {', '.join(missing)}")
        rows = tuple(_measurement(row, reader.line_num, source) for row in reader)
    except csv.Error as exc:
        raise ConfigError(f"{source}, line {reader.line_num}: {exc}") from exc
    if not rows:
        raise ConfigError(f"{source}: no measurement below the header")
    _refuse_duplicates(rows, source)
    return ProfileTable(source, rows)


def _measurement(row: Mapping[str | None, str | list[str] | None], line: int, source: str) -> Measurement:
    where = f"{source}, line {line}"
    if None in row:
        raise ConfigError(f"{where}: more fields than the header has")

    def text(name: str) -> str:
        value = row.get(name)
        return value.strip() if isinstance(value, str) else ""

    def number(name: str, *, least: float, most: float = math.inf) -> float:
        try:
            value = float(text(name))
        except ValueError as exc:
            raise ConfigError(f"{where}: {name} must be a number, got {text(name)!r}") from exc
        if not (math.isfinite(value) and least <= value <= most):
            raise ConfigError(f"{where}: {name} is out of range, got {text(name)}")
        return value

    def whole(name: str, *, least: int, most: float = math.inf) -> int:
        value = number(name, least=least, most=most)
        if value != int(value):
            raise ConfigError(f"{where}: {name} must be a whole number, got {text(name)}")
        return int(value)

    tpot_ms = number("tpot_ms", least=0.0, most=MAX_STEP_S * 1000.0)
    if tpot_ms < MIN_STEP_S * 1000.0:
        raise ConfigError(f"{where}: tpot_ms must be positive, got {text('tpot_ms')}")
    return Measurement(
        line=line,
        gpu=text("gpu"),
        model=text("model"),
        tp_degree=whole("tp", least=1, most=MAX_BATCH),
        batch=whole("batch", least=1, most=MAX_BATCH),
        context_tokens=number("context_len", least=0.0) if text("context_len") else 0.0,
        step_seconds=tpot_ms / 1000.0,
        slots=whole("slots", least=1) if text("slots") else None,
        kv_capacity_tokens=whole("kv_capacity_tokens", least=0) if text("kv_capacity_tokens") else None,
        prefill_tokens_per_s=number("prefill_tokens_per_s", least=0.0)
        if text("prefill_tokens_per_s")
        else None,
    )


def _refuse_duplicates(rows: Sequence[Measurement], source: str) -> None:
    seen: dict[tuple[str, str, int, int, float], int] = {}
    for row in rows:
        key = (row.gpu, row.model, row.tp_degree, row.batch, row.context_tokens)
        if key in seen:
            raise ConfigError(
                f"{source}, line {row.line}: gpu, model, tp, batch and context_len of line {seen[key]}"
            )
        seen[key] = row.line


def _choose(name: str, wanted: str | None, there: Sequence[str], source: str) -> str:
    if wanted is None:
        if len(there) == 1:
            return there[0]
        raise ConfigError(f"{source} holds more than one {name}; choose one of {', '.join(there)}")
    if wanted not in there:
        raise ConfigError(f"{source} has no {name} {wanted!r}; it has {', '.join(map(repr, there))}")
    return wanted


def _default_context(rows: Sequence[Measurement]) -> float:
    contexts = sorted({row.context_tokens for row in rows})
    return next((context for context in contexts if context >= 4096), contexts[-1])


def _curve(rows: Sequence[Measurement], context_tokens: float) -> dict[int, float]:
    return {row.batch: row.step_seconds for row in rows if row.context_tokens == context_tokens}


def _same(name: str, values: Sequence[tuple[int, Value]], source: str) -> Value:
    first_line, first = values[0]
    for line, value in values:
        if value != first:
            raise ConfigError(f"{source}, line {line}: {name} differs from line {first_line} of the same tp")
    return first
