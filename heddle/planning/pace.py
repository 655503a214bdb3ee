"""How fast a worker decodes, from the moments of its steps: the line ``step = a + c * batch``, and whether it
keeps up with what is expected of it. Pure.

A server counts, over all its decoding steps, the sums of batch sizes and durations and of their products.
The difference of two such counts is all that a least-squares line through the steps between them needs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from heddle.decoding import DecodeMoments
from heddle.planning.profile import MIN_STEP_S, DegreeProfile

HALF_LIFE_STEPS = 5_000.0
"""Steps after which an observation counts half: minutes of decoding on a GPU, so that the line follows
contexts that grow."""

MIN_WINDOW_STEPS = 32.0
"""Fewer say nothing: a single prompt computed between two steps would be taken for slowness."""

BEHIND = 1.5
"""Times the expected step time from which a worker counts as slow."""
RECOVERED = 1.2
"""Times the expected step time at which it no longer does."""
WINDOWS_BEHIND = 3
"""Windows in a row: a burst of prompts is over in fewer."""

_MIN_SPREAD = 1e-3
"""Variance of the batch size, relative to its square, below which a slope would be noise."""


@dataclass(frozen=True, slots=True)
class StepLine:
    """Seconds of a decoding step: ``base_s + per_generation_s * batch``; neither is negative."""

    base_s: float
    per_generation_s: float

    def step_s(self, batch: float) -> float:
        """Seconds of a step with ``batch`` running generations."""
        return self.base_s + self.per_generation_s * batch


def fit_line(moments: DecodeMoments) -> StepLine | None:
    """The least-squares line; ``None`` without a step.

    Flat at the mean where the batch never changed. Both coefficients are held at zero or above, as they are
    in any machine: noise must not promise that a step costs nothing at some other batch.
    """
    n = moments.steps
    if n <= 0.0:
        return None
    mean_batch, mean_s = moments.batch / n, moments.seconds / n
    variance = moments.batch_squared / n - mean_batch**2
    if variance <= _MIN_SPREAD * mean_batch**2:
        return StepLine(mean_s, 0.0)
    slope = (moments.batch_seconds / n - mean_batch * mean_s) / variance
    if slope <= 0.0:
        return StepLine(mean_s, 0.0)
    base = mean_s - slope * mean_batch
    if base < 0.0:  # through the origin, then
        return StepLine(0.0, moments.batch_seconds / moments.batch_squared)
    return StepLine(base, slope)


@dataclass(frozen=True, slots=True)
class Pace:
    """What is known of one worker's speed."""

    line: StepLine | None
    """Over the recent past; ``None`` before the first step."""
    ratio: float | None
    """Step time of the last window over what was expected; ``None`` while nothing is."""
    behind: bool
    """It has been much slower than expected for several windows."""


@dataclass(slots=True)
class PaceMeter:
    """One worker's pace, from counts that its server gives from time to time."""

    expected: DegreeProfile | None
    """Of its degree; ``None`` measures it against its own past."""
    pace: Pace = Pace(None, None, False)
    largest_batch: int = 1
    """Mean batch of the busiest window, rounded: as far as the line is known to hold."""
    _last: DecodeMoments | None = None
    _window: DecodeMoments = field(default_factory=DecodeMoments)
    _past: DecodeMoments = field(default_factory=DecodeMoments)
    _slow_windows: int = 0

    @property
    def past(self) -> DecodeMoments:
        """What the line is fitted to: recent steps count more."""
        return self._past

    def observe(self, counted: DecodeMoments) -> Pace:
        """Take the server's counts, which only grow; lower ones are those of a server that started anew."""
        fresh = counted if self._last is None else counted.since(self._last)
        self._last = counted
        self._window = self._window.plus(fresh)
        if self._window.steps >= MIN_WINDOW_STEPS:
            self._close_window()
        return self.pace

    def _close_window(self) -> None:
        window, self._window = self._window, DecodeMoments()
        batch, seconds = window.batch / window.steps, window.seconds / window.steps
        expected = self._expected_s(batch)
        ratio = None if expected is None else seconds / expected
        slow = ratio is not None and ratio >= (RECOVERED if self.pace.behind else BEHIND)
        self._slow_windows = self._slow_windows + 1 if slow else 0
        behind = slow and (self.pace.behind or self._slow_windows >= WINDOWS_BEHIND)
        if not slow or self.expected is not None:  # what is measured against its past must not forget it
            self._past = self._past.times(0.5 ** (window.steps / HALF_LIFE_STEPS)).plus(window)
        self.largest_batch = max(self.largest_batch, round(batch))
        self.pace = Pace(fit_line(self._past), ratio, behind)

    def _expected_s(self, batch: float) -> float | None:
        if self.expected is not None:
            low = max(1, int(batch))
            table = self.expected.step_table(low + 1)
            return float(table[low] + (table[low + 1] - table[low]) * max(0.0, batch - low))
        line = fit_line(self._past)
        return None if line is None else max(line.step_s(batch), MIN_STEP_S)


def profile_csv(meters: Iterable[tuple[int, PaceMeter]]) -> str:
    """What workers of each degree showed, as a file that ``parse_profiles`` reads; empty without a step.

    ``meters`` come with the degrees of their workers, of which there may be several. The line is given at
    powers of two as far as a batch was seen.
    """
    totals: dict[int, tuple[DecodeMoments, int]] = {}
    for tp_degree, meter in meters:
        moments, largest = totals.get(tp_degree, (DecodeMoments(), 1))
        totals[tp_degree] = moments.plus(meter.past), max(largest, meter.largest_batch)
    lines = []
    for tp_degree, (moments, largest) in sorted(totals.items()):
        line = fit_line(moments)
        if line is not None:
            batches = [1 << exponent for exponent in range(largest.bit_length())]
            lines += [f"{tp_degree},{batch},{line.step_s(batch) * 1e3:.4f}" for batch in batches]
    return "\n".join(["tp,batch,tpot_ms", *lines, ""]) if lines else ""
