"""The files of a profile: a table that planners read, and a plot."""

from __future__ import annotations

from pathlib import Path

import pytest
from profiling_builders import SUBJECT, make_degree

from heddle.planning.profile_csv import parse_profiles
from heddle.profiling.measured import MeasuredPoint, to_csv
from heddle.profiling.plot import plot


def test_the_table_is_read_back_as_it_was_measured() -> None:
    """What ``heddle profile`` writes, ``heddle plan --profile`` reads."""
    measured = [make_degree(1, (10, 10, 30), (15,)), make_degree(2, (7,), (8,), kv=None)]
    profile = parse_profiles(to_csv(measured, SUBJECT)).select()
    assert (profile.gpu, profile.model, profile.context_tokens) == ("cpu", "tiny", 64)
    assert [degree.profile() for degree in measured] == list(profile.degrees)


def test_dips_are_lifted_in_the_table_and_told() -> None:
    """``tpot_ms`` is monotone; what was seen stands in ``low_ms``."""
    header, *rows = to_csv([make_degree(1, (10,), (8,), (12,))], SUBJECT).splitlines()
    columns = header.split(",")
    cells = [dict(zip(columns, row.split(","), strict=True)) for row in rows]
    assert ["10.0000", "10.0000", "12.0000"] == [row["tpot_ms"] for row in cells]
    assert ["10.0000", "8.0000", "12.0000"] == [row["low_ms"] for row in cells]


def test_disturbed_samples_do_not_move_the_table() -> None:
    """A neighbour on the machine makes steps longer, for more than half of the time even."""
    point = MeasuredPoint(1, (0.010, 0.900, 0.010, 0.800, 0.700))
    assert (0.010, 0.700, 0.800) == point.spread_s
    assert 0.010 == point.typical_s


def test_one_sample_has_no_spread() -> None:
    """A spread needs two."""
    assert (0.01, 0.01, 0.01) == MeasuredPoint(1, (0.01,)).spread_s


def test_the_plot_is_a_picture(tmp_path: Path) -> None:
    """A PNG of a size that a person can read."""
    pytest.importorskip("matplotlib")
    path = tmp_path / "profile.png"
    plot([make_degree(1, (10, 12), (15,)), make_degree(2, (7,), (8, 9))], SUBJECT, path)
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG")
    assert int.from_bytes(content[16:20], "big") >= 1200
