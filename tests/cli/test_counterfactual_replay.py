"""``heddle replay LOG --with PRESET``: the live run, the model of it, and what others would have done."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from cli_simulated import document
from typer.testing import CliRunner, Result

from heddle.cli.commands import app
from heddle.control.build import PlaneSettings
from heddle.planning.profile_csv import parse_profiles
from heddle.simulate.hardware import EngineRules, PrefillMode, hardware_from_profile
from heddle.simulate.options import SimulationOptions
from heddle.simulate.simulator import simulate
from heddle.simulate.workload import Workload, WorkStep, WorkTrajectory
from heddle.types import GroupId, TrajectoryId

PROFILE = "tp,batch,tpot_ms,prefill_tokens_per_s\n1,1,20,2000\n1,4,32,2000\n2,1,11,3500\n2,4,18,3500\n"


def made_up(count: int = 24) -> Workload:
    """Trajectories of up to three steps."""
    rng = random.Random(1)
    return Workload(
        "made up",
        tuple(
            WorkTrajectory(
                TrajectoryId(f"t{index}"),
                GroupId(f"g{index // 2}"),
                (*(WorkStep(60, rng.randint(5, 90), ("sh",), 0.4) for _ in range(2)), WorkStep(20, 10)),
            )
            for index in range(count)
        ),
    )


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The log of a run on two engines that mix prompts with decoding."""
    return recorded(tmp_path, PlaneSettings(pool="1+1", slots=2))


def recorded(tmp_path: Path, settings: PlaneSettings) -> Path:
    """The log of a run under these settings."""
    lines: list[bytes] = []
    hardware = hardware_from_profile(parse_profiles(PROFILE), 2, rules=EngineRules(prefill=PrefillMode.MIXED))
    simulate(
        made_up(),
        settings,
        hardware,
        seed=0,
        configuration="live",
        options=SimulationOptions(log=lines.append, overhead_s=0.01),
    )
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"\n".join([*lines, b""]))
    return path


def invoke(*arguments: object) -> Result:
    """Run the command."""
    return CliRunner().invoke(app, ["replay", *map(str, arguments)])


def test_the_model_stands_beside_the_run_that_it_models(log: Path) -> None:
    """Fitted to the log alone, it is close; and the presets are measured by it, not by the run."""
    made = document(invoke(log, "--with", "slime,heddle", "--json"))
    as_recorded, slime, heddle = made["configurations"]
    assert ("as recorded", "slime", "heddle") == tuple(one["configuration"] for one in made["configurations"])
    assert made["engine_times"].startswith("degree 1 fitted to 72 generations")
    assert abs(made["model_error"]) < 0.05
    expected = as_recorded["makespan_s"] / made["live_makespan_s"] - 1
    assert pytest.approx(expected) == made["model_error"]
    assert 1.0 == as_recorded["ratio"]
    for one in (slime, heddle):
        assert pytest.approx(as_recorded["makespan_s"] / one["makespan_s"]) == one["ratio"]
        assert one["bound"]["seconds"] <= one["makespan_s"]
    assert slime["migrations"] > 0 == as_recorded["migrations"]


def test_a_given_profile_is_used_and_named(log: Path, tmp_path: Path) -> None:
    """With it the model is exact here, and other degrees can be tried."""
    profile, mine = tmp_path / "profile.csv", tmp_path / "mine.toml"
    profile.write_text(PROFILE)
    mine.write_text('[presets.wide]\nbase = "sticky"\npool = "2"\n')
    made = document(invoke(log, "--with", "wide", "--presets", mine, "--profile", profile, "--json"))
    assert str(profile) == made["engine_times"]
    assert pytest.approx(0.0, abs=1e-6) == made["model_error"]
    assert "1 x tp2" == made["configurations"][1]["pool"]


def test_the_table_is_for_people(log: Path) -> None:
    """The live makespan first, then the model's error in words."""
    shown = invoke(log, "--with", "sticky").stdout
    assert "the model is off by" in shown
    assert ["live", "as recorded", "sticky"] == [
        name for name in ("live", "as recorded", "sticky") if f"\n{name} " in shown
    ]
    assert max(map(len, shown.splitlines())) <= 120


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (("--with", "nobody"), "unknown preset 'nobody'"),
        (("--with", ","), "--with"),
        (("--with", "fix8"), "8"),
        (("--with", "sticky", "--profile", "nowhere.csv"), "nowhere.csv"),
    ],
)
def test_what_makes_no_sense_is_refused(log: Path, typed: tuple[str, ...], message: str) -> None:
    """A preset whose workers nobody has times for included."""
    result = invoke(log, *typed)
    assert 2 == result.exit_code
    assert message in result.stderr


def test_without_presets_it_checks_the_log(log: Path) -> None:
    """Byte for byte, as ever."""
    assert "the same byte for byte" in invoke(log).stdout


@pytest.mark.parametrize(("tokens_per_s", "moves"), [(1e6, True), (1.0, False)])
def test_prefixes_travel_as_fast_as_the_run_took_them_to(
    tmp_path: Path, tokens_per_s: float, moves: bool
) -> None:
    """On a link of a token a second no transfer is done before its deadline."""
    settings = PlaneSettings(
        pool="1+1", slots=2, predictor="oracle", migration="rank", transfer_tokens_per_s=tokens_per_s
    )
    [as_recorded] = document(invoke(recorded(tmp_path, settings), "--with", "heddle", "--json"))[
        "configurations"
    ][:1]
    assert (as_recorded["migrations"] > 0) is moves
