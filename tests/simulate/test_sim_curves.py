"""Sums of step times in closed form against sums step by step, and their inverse."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.planning.profile import DegreeProfile
from heddle.planning.shipped import shipped_profiles
from heddle.simulate.curves import StepCurves
from heddle.simulate.hardware import hardware_from_profile

CURVES = StepCurves(
    (1000.0, 4000.0, 8000.0),
    tuple(
        DegreeProfile.measured(1, [(1, one), (8, eight)])
        for one, eight in ((0.010, 0.020), (0.011, 0.028), (0.013, 0.044))
    ),
    16,
)


class TestCurves:
    """One degree of a made-up worker."""

    @pytest.mark.parametrize(
        ("batch", "context", "seconds"),
        [
            (1, 1000, 0.010),
            (8, 4000, 0.028),
            (8, 6000, 0.036),
            (1, 0, 0.010),
            (8, 10_000, 0.052),
            (16, 1000, 0.040),
        ],
    )
    def test_steps_are_bilinear_and_go_on_beyond(self, batch: int, context: float, seconds: float) -> None:
        assert CURVES.step_s(batch, context) == pytest.approx(seconds)

    @settings(deadline=None)
    @given(
        batch=st.integers(1, 16),
        context=st.floats(0.0, 12_000.0),
        steps=st.integers(0, 3000),
    )
    def test_a_sum_is_that_of_its_steps(self, batch: int, context: float, steps: int) -> None:
        summed = sum(CURVES.step_s(batch, context + i) for i in range(steps))

        assert math.isclose(CURVES.seconds(batch, context, steps), summed, rel_tol=1e-6, abs_tol=1e-5)

    @settings(deadline=None)
    @given(
        batch=st.integers(1, 16),
        context=st.floats(0.0, 12_000.0),
        steps=st.floats(0.0, 3000.0),
    )
    def test_the_inverse_finds_the_steps(self, batch: int, context: float, steps: float) -> None:
        found = CURVES.steps_within(batch, context, CURVES.seconds(batch, context, steps))

        assert math.isclose(found, steps, rel_tol=1e-9, abs_tol=1e-6)

    def test_a_dip_in_a_table_is_lifted(self) -> None:
        dipping = StepCurves(
            (0.0, 100.0),
            tuple(DegreeProfile.measured(1, [(1, seconds)]) for seconds in (0.02, 0.01)),
            4,
        )

        assert dipping.step_s(1, 100) == dipping.step_s(1, 0) == 0.02

    def test_the_shipped_table_gives_rising_step_times(self) -> None:
        hardware = hardware_from_profile(shipped_profiles(), 8, gpu="h100_sxm", model="Qwen3-14B")
        for engine in hardware.engines:
            curves = engine.curves(64)
            steps = [[curves.step_s(batch, c) for c in (100, 5000, 40_000)] for batch in (1, 7, 64)]
            assert all(row == sorted(row) for row in steps)
            assert all(list(column) == sorted(column) for column in zip(*steps, strict=True))
