"""How fast a worker decodes, from sums over its steps: the line, and who falls behind it."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean, pvariance

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from heddle.decoding import DecodeMoments
from heddle.planning.pace import WINDOWS_BEHIND, PaceMeter, StepLine, fit_line, profile_csv
from heddle.planning.profile import DegreeProfile
from heddle.planning.profile_csv import parse_profiles

LINE = StepLine(0.010, 0.002)
PROFILE = DegreeProfile(1, (1, 2, 4, 8), tuple(LINE.step_s(batch) for batch in (1, 2, 4, 8)))


def moments(steps: Iterable[tuple[float, float]]) -> DecodeMoments:
    """The sums over steps of these batches and seconds."""
    total = DecodeMoments()
    for batch, seconds in steps:
        total = total.plus(DecodeMoments(1.0, batch, seconds, batch * batch, batch * seconds))
    return total


def steps_at(batches: Iterable[float], slower: float = 1.0) -> DecodeMoments:
    """Steps of a worker on the line, or so many times slower."""
    return moments((batch, LINE.step_s(batch) * slower) for batch in batches)


class Server:
    """Counts, as a server does, over everything that it has ever decoded."""

    def __init__(self, meter: PaceMeter) -> None:
        self.meter = meter
        self.counted = DecodeMoments()

    def decode(self, batches: Iterable[float], slower: float = 1.0) -> None:
        self.counted = self.counted.plus(steps_at(batches, slower))
        self.meter.observe(self.counted)

    def windows(self, number: int, slower: float = 1.0, batch: float = 4.0) -> None:
        """So many windows of steps, each told by itself."""
        for _ in range(number):
            self.decode([batch - 1.0, batch + 1.0] * 20, slower)


@given(
    base=st.floats(1e-4, 1.0),
    slope=st.floats(1e-5, 0.1),
    batches=st.lists(st.integers(1, 256), min_size=2, max_size=30, unique=True),
)
def test_the_line_is_found_from_the_sums_alone(base: float, slope: float, batches: list[int]) -> None:
    """Whatever the steps were, as long as their batches differ by more than noise would."""
    assume(pvariance(batches) > 0.01 * fmean(batches) ** 2)
    line = StepLine(base, slope)
    fitted = fit_line(moments((batch, line.step_s(batch)) for batch in batches))
    assert fitted is not None
    for batch in batches:
        assert fitted.step_s(batch) == pytest.approx(line.step_s(batch), rel=0.02)


@given(st.lists(st.tuples(st.integers(1, 64), st.floats(1e-4, 1.0)), min_size=1, max_size=40))
def test_no_step_is_ever_promised_for_nothing(steps: list[tuple[int, float]]) -> None:
    """However the measurements scatter, and the mean is met where the line is not held at an edge."""
    fitted = fit_line(moments((float(batch), seconds) for batch, seconds in steps))
    assert fitted is not None
    assert fitted.base_s >= 0.0
    assert fitted.per_generation_s >= 0.0
    assert fitted.step_s(1.0) > 0.0


def test_without_steps_there_is_no_line() -> None:
    """Nothing was decoded yet."""
    assert fit_line(DecodeMoments()) is None


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30), st.integers(0, 29))
def test_a_difference_of_counts_is_the_count_of_what_lay_between(batches: list[int], cut: int) -> None:
    """And a server that started anew counts from its start."""
    earlier, whole = steps_at(batches[:cut]), steps_at(batches)
    between = whole.since(earlier)
    assert between.steps == len(batches[cut:])
    assert between.seconds == pytest.approx(steps_at(batches[cut:]).seconds, abs=1e-9)
    if cut < len(batches):
        assert earlier.since(whole) == earlier


def test_a_worker_that_keeps_its_profile_is_never_behind() -> None:
    """Its ratio is one, between the batches of the profile too."""
    server = Server(PaceMeter(PROFILE))
    server.windows(10)
    assert server.meter.pace.ratio == pytest.approx(1.0, rel=0.01)
    assert not server.meter.pace.behind
    assert server.meter.pace.line is not None
    assert server.meter.pace.line.per_generation_s == pytest.approx(LINE.per_generation_s, rel=0.01)


@pytest.mark.parametrize("expected", [PROFILE, None], ids=["profile", "own past"])
def test_a_worker_that_slows_down_is_behind_after_some_windows_and_recovers(
    expected: DegreeProfile | None,
) -> None:
    """A short burst is forgiven; without a profile a worker is held to its own past, which it keeps."""
    server = Server(PaceMeter(expected))
    phases = [
        (5, 1.0),
        (WINDOWS_BEHIND - 1, 2.0),
        (1, 1.0),
        (WINDOWS_BEHIND, 2.0),
        (40, 2.0),
        (1, 1.3),
        (1, 1.0),
    ]
    behind = []
    for windows, slower in phases:
        server.windows(windows, slower)
        behind.append(server.meter.pace.behind)
    assert behind == [False, False, False, True, True, True, False]


def test_few_steps_say_nothing() -> None:
    """They are kept until there are enough."""
    meter = PaceMeter(PROFILE)
    assert meter.observe(steps_at([4.0] * 10, slower=9.0)).ratio is None
    assert meter.observe(steps_at([4.0] * 40, slower=9.0)).ratio == pytest.approx(9.0, rel=0.01)


def test_what_was_seen_is_a_profile_that_planners_read() -> None:
    """Workers of one degree make one curve, up to the batch that any of them has run."""
    first, second = Server(PaceMeter(None)), Server(PaceMeter(None))
    first.windows(3, batch=2.0)
    second.windows(3, batch=5.0)
    made = parse_profiles(profile_csv([(1, first.meter), (1, second.meter)])).select()
    assert [degree.tp_degree for degree in made.degrees] == [1]
    assert made[1].batches == (1, 2, 4)
    for batch, seconds in zip(made[1].batches, made[1].step_seconds, strict=True):
        assert seconds == pytest.approx(LINE.step_s(batch), rel=0.01)
    assert profile_csv([(1, PaceMeter(None))]) == ""
