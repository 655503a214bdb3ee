"""Engine times from an event log: how fast the engines of a recorded run were.

Per degree, over all generations that ran to their end: ``seconds = p * u + (n - 1) * (a + c * (m - 1)) + r``,
where ``u`` prompt tokens were computed, its own and those of all that came to the worker meanwhile (a
generation waits for them or stands still), ``n`` tokens sampled, and ``m`` is the mean number of generations
on the worker. ``p``, ``a``, ``c`` and ``r`` are found by least squares, none negative, each generation
weighted by the inverse of its seconds so that long ones do not decide alone. A step at batch ``b`` then takes
``a + c * (b - 1)``. The growth of step times with the context is not told apart: it is in ``a``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from heddle.errors import ConfigError
from heddle.planning.profile import MIN_STEP_S, DegreeProfile, Floats
from heddle.simulate.hardware import EngineTimes
from heddle.simulate.readers.recorded import Generation, RecordedRun, RecordedWorker

FEWEST_GENERATIONS = 8
"""Of one degree, before anything is fitted."""
FASTEST_PREFILL = 1e9
"""Tokens a second where prompts seem to cost nothing."""


@dataclass(frozen=True, slots=True)
class FittedDegree:
    """What was found for one degree; seconds."""

    tp_degree: int
    step_s: float
    """``a``: a step alone."""
    per_member_s: float
    """``c``: each further generation of the batch adds this."""
    per_prompt_token_s: float
    request_s: float
    """``r``: of every request, whatever its size."""
    generations: int
    error: float
    """Median of the relative differences between fitted and recorded seconds."""

    def times(self, worker: RecordedWorker) -> EngineTimes:
        """For the simulated engines; capacities are those that a worker of this degree told."""
        points = [(b, max(MIN_STEP_S, self.step_s + self.per_member_s * (b - 1))) for b in (1, 2)]
        prefill_s = max(self.per_prompt_token_s, 1.0 / FASTEST_PREFILL)
        return EngineTimes(
            tp_degree=self.tp_degree,
            contexts=(0.0,),
            profiles=(DegreeProfile.measured(self.tp_degree, _line(points, worker.spec.slots)),),
            prefill_tokens_per_s=1.0 / prefill_s,
            kv_capacity_tokens=worker.kv_capacity_tokens,
            prefix_capacity_tokens=worker.prefix_capacity_tokens,
        )


@dataclass(frozen=True, slots=True)
class _Stay:
    """One complete generation and what else happened on its worker."""

    seconds: float
    prompt_tokens: int
    """Computed from its begin to its end, for whomever."""
    output_tokens: int
    mean_batch: float


def fit(run: RecordedRun) -> tuple[FittedDegree, ...]:
    """Every degree of the run, ascending. Raises ``ConfigError`` where it has too little to fit."""
    degree_of = {worker.spec.worker_id: worker.spec.tp_degree for worker in run.workers}
    stays: dict[int, list[_Stay]] = {degree: [] for degree in sorted(set(degree_of.values()))}
    for worker_id, degree in degree_of.items():
        stays[degree] += _stays([g for g in run.generations if g.worker_id == worker_id])
    return tuple(_fit_degree(degree, of_degree) for degree, of_degree in stays.items())


def _stays(generations: Sequence[Generation]) -> Iterator[_Stay]:
    """Of one worker."""
    begins = sorted((g.began_at, g.uncached_tokens or 0) for g in generations)
    began = np.array([time for time, _ in begins])
    computed = np.concatenate([[0], np.cumsum([tokens for _, tokens in begins])])
    times, area = _occupation(generations)
    for generation in generations:
        seconds = generation.ended_at - generation.began_at
        if generation.uncached_tokens is None or seconds <= 0:
            continue
        first, last = np.searchsorted(began, [generation.began_at, generation.ended_at])
        begin, end = np.interp([generation.began_at, generation.ended_at], times, area)
        yield _Stay(
            seconds,
            int(computed[last] - computed[first]),
            generation.output_tokens,
            float(end - begin) / seconds,
        )


def _fit_degree(degree: int, stays: Sequence[_Stay]) -> FittedDegree:
    if len(stays) < FEWEST_GENERATIONS:
        raise ConfigError(
            f"{len(stays)} generations on workers of degree {degree} are too few to fit engine times to; "
            "give a profile"
        )
    seconds = np.array([stay.seconds for stay in stays])
    rows = np.array([_coefficients(stay) for stay in stays])
    found = _non_negative(rows / seconds[:, None], np.ones(len(seconds)))
    error = float(np.median(np.abs(rows @ found / seconds - 1.0)))
    prompt, alone, member, request = (float(value) for value in found)
    return FittedDegree(degree, alone, member, prompt, request, len(stays), error)


def _coefficients(stay: _Stay) -> tuple[float, float, float, float]:
    """Of ``p``, ``a``, ``c`` and ``r``."""
    decoded = max(0, stay.output_tokens - 1)
    return stay.prompt_tokens, decoded, decoded * (stay.mean_batch - 1.0), 1.0


def _non_negative(rows: Floats, wanted: Floats) -> Floats:
    """Least squares without negative coefficients: the best over all choices of which are 0."""
    width = rows.shape[1]
    best, least = np.zeros(width), float(wanted @ wanted)
    for size in range(1, width + 1):
        for chosen in combinations(range(width), size):
            part = rows[:, chosen]
            solved = np.linalg.lstsq(part, wanted, rcond=None)[0]
            residual = float(((part @ solved - wanted) ** 2).sum())
            if (solved >= 0).all() and residual < least:
                best, least = np.zeros(width), residual
                best[list(chosen)] = solved
    return best


def _occupation(generations: Sequence[Generation]) -> tuple[Floats, Floats]:
    """Times and, at each, the number of generations on the worker integrated over the time before."""
    changes = sorted([(g.began_at, 1) for g in generations] + [(g.ended_at, -1) for g in generations])
    times = np.array([time for time, _ in changes])
    counts = np.cumsum([change for _, change in changes])
    return times, np.concatenate([[0.0], np.cumsum(counts[:-1] * np.diff(times))])


def _line(points: Sequence[tuple[int, float]], slots: int) -> list[tuple[int, float]]:
    """A straight line through two points, at 1 and at the most that is asked for."""
    (first, low), (second, high) = points
    most = max(second, slots)
    return [(first, low), (most, low + (high - low) * (most - first))]


def capacities(run: RecordedRun) -> Mapping[int, RecordedWorker]:
    """A worker of each degree, for what it told of its memory."""
    return {worker.spec.tp_degree: worker for worker in run.workers}
