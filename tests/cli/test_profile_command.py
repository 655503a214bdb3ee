"""``heddle profile`` as it is typed: what is refused, and a real measurement."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner, Result

from heddle.cli.commands import app
from heddle.cli.output import Output
from heddle.cli.profile import ProfileOptions, draw, measured_table, plan_sweep, unsettled_points
from heddle.config import parse_config
from heddle.planning.profile_csv import parse_profiles
from heddle.profiling.measured import MeasuredDegree, MeasuredPoint, Subject


def invoke(*arguments: str | Path) -> Result:
    """Measure in this process."""
    return CliRunner().invoke(app, ["profile", *map(str, arguments)])


def make_options(**changes: Any) -> ProfileOptions:
    """Everything defaulted but what a test is about."""
    defaults = {
        "out": Path("p.csv"),
        "plot": None,
        "degrees": None,
        "batches": None,
        "context": 256,
        "rounds": 3,
        "gpu": "cpu",
    }
    return ProfileOptions(**(defaults | changes))


def test_batches_go_up_to_the_slots() -> None:
    """The largest is always measured: beyond it a table is a guess."""
    sweep_plan = plan_sweep(parse_config({"engine": {"slots": 6}}), make_options(degrees="2,1,2"))
    assert (1, 2, 4, 6) == sweep_plan.batches
    assert (1, 2) == sweep_plan.degrees
    assert 6 == sweep_plan.slots


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--batches", "2"), "batches must ascend from 1"),
        (("--batches", "1,x"), "--batches"),
        (("--batches", "1,8"), "does not fit 4 slots"),
        (("--degrees", "0"), "--degrees"),
        (("--rounds", "0"), "at least one round"),
        (("--context", "10"), "context must be at least"),
        (("--context", "2040"), "needs room for"),
        (("--slots", "0"), "engine.slots"),
        (("--plot", "absent/p.png"), "--plot"),
    ],
)
def test_bad_input_exits_with_2_and_a_reason(tmp_path: Path, arguments: tuple[str, ...], named: str) -> None:
    """Before anything is measured; no file appears."""
    out = tmp_path / "p.csv"
    refused = invoke("--out", out, "--set", f"data_dir={tmp_path}", *arguments)
    assert (2, False) == (refused.exit_code, out.exists())
    assert named in refused.stderr


def test_a_file_in_no_folder_is_refused(tmp_path: Path) -> None:
    """A minute of measuring must not end with a path that cannot be written."""
    refused = invoke("--out", tmp_path / "absent" / "p.csv")
    assert 2 == refused.exit_code
    assert "--out" in refused.stderr


def test_a_model_that_will_not_go_on_fails(tmp_path: Path) -> None:
    """The fake engine ends its turns at random: there is nothing to time, and nothing is made up."""
    out = tmp_path / "p.csv"
    failed = invoke(
        "--out", out, "--degrees", "1", "--set", "engine.kind=fake", "--set", f"data_dir={tmp_path}"
    )
    assert (1, False) == (failed.exit_code, out.exists())
    assert "too early" in failed.stderr


def test_the_table_shows_the_interference() -> None:
    """How much longer a step takes than alone."""
    degree = MeasuredDegree(
        2, 4, (MeasuredPoint(1, (0.01,)), MeasuredPoint(2, (0.015,))), 100.0, kv_capacity_tokens=None
    )
    (factors,) = [list(column.cells) for column in measured_table([degree]).columns if column.header == "F"]
    assert ["1.00", "1.50"] == factors


def test_without_matplotlib_the_remedy_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table is worth having without its plot."""
    monkeypatch.setattr("heddle.cli.profile.can_plot", lambda: False)
    degree = MeasuredDegree(1, 4, (MeasuredPoint(1, (0.01,)),), 100.0, kv_capacity_tokens=None)
    drawn = draw([degree], Subject("cpu", "tiny", 64), tmp_path / "p.png", Output(json=False))
    assert (None, []) == (drawn, list(tmp_path.iterdir()))
    assert "pip install 'heddle[plot]'" in capsys.readouterr().err


def test_points_that_would_not_repeat_are_told() -> None:
    """Their samples lie too far apart."""
    points = (MeasuredPoint(1, (0.010, 0.011, 0.011)), MeasuredPoint(2, (0.010, 0.030, 0.030)))
    degree = MeasuredDegree(2, 4, points, 100.0, kv_capacity_tokens=None)
    assert [(2, 2)] == unsettled_points([degree])


@pytest.mark.engine
@pytest.mark.timeout(300)
def test_a_real_engine_gives_a_table_and_a_plot(tmp_path: Path) -> None:
    """The shortest sweep: one thread, two batches, one round; ``heddle plan`` can read what it writes."""
    out = tmp_path / "p.csv"
    short = ("--degrees", "1", "--slots", "2", "--context", "64", "--rounds", "1")
    result = invoke("--out", out, *short, "--set", f"data_dir={tmp_path}", "--json")
    assert 0 == result.exit_code, result.stderr
    profile = parse_profiles(out.read_text()).select()
    (degree,) = profile.degrees
    assert ("cpu", "smollm2-135m-instruct", 64.0) == (profile.gpu, profile.model, profile.context_tokens)
    assert ((1, 2), 2) == (degree.batches, degree.slots)
    assert degree.prefill_tokens_per_s is not None
    assert degree.prefill_tokens_per_s > 1
    assert degree.kv_capacity_tokens == 2 * 2048
    told = orjson.loads(result.stdout)
    assert pytest.approx(list(degree.step_seconds), rel=1e-3) == told["degrees"][0]["step_seconds"]
    if told["files"]["plot"] is not None:
        assert Path(told["files"]["plot"]).read_bytes().startswith(b"\x89PNG")
