"""``heddle rehearse`` as it is typed: the table, the document, the preset, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_simulated import document, written_profile, written_trace
from typer.testing import CliRunner, Result

from heddle.cli.commands import app
from heddle.presets import parse_presets


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return written_trace(tmp_path)


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    return written_profile(tmp_path)


def invoke(*arguments: object) -> Result:
    """Run the command."""
    return CliRunner().invoke(app, ["rehearse", *map(str, arguments)])


def test_the_faster_pool_is_found_and_can_be_used(trace: Path, profile: Path) -> None:
    """Few trajectories run faster on one worker of degree 2, and the answer is a preset upon Heddle's."""
    arguments = (trace, "--gpus", 2, "--profile", profile, "--draws", 2, "--json")

    found = document(invoke(*arguments))

    assert found["pool"] == "2"
    assert found["trajectories"] == 12
    assert found == document(invoke(*arguments))
    preset = parse_presets(found["toml"], source="answer")["rehearsed"]
    assert (preset.choices["pool"], preset.choices["allocator"]) == ("2", "fixed")
    assert preset.choices["scheduler"] == "fcfs", (
        "with exact lengths the longest first loses more than 2 % of a draw"
    )
    tolerant = document(invoke(*arguments, "--margin", 0.5))
    assert parse_presets(tolerant["toml"], source="answer")["rehearsed"].choices["scheduler"] == "earned"
    best, *others = found["tried"]
    assert best["makespan_s"] == found["makespan_s"]
    assert {tried["pool"] for tried in [best, *others]} == {"1 x tp2", "2 x tp1"}


def test_people_read_a_table(trace: Path, profile: Path) -> None:
    """One line a candidate, the choice, and the preset."""
    result = invoke(trace, "--gpus", 2, "--profile", profile, "--draws", 1)

    assert result.exit_code == 0, result.stderr
    assert "1 x tp2" in result.stdout
    assert '[presets.rehearsed]\nbase = "heddle"' in result.stdout


def test_a_part_of_the_budget_stands_for_all_of_it(trace: Path, profile: Path) -> None:
    """Half the groups are played on half the budget, and the pool is for the whole."""
    found = document(invoke(trace, "--gpus", 4, "--profile", profile, "--parts", 2, "--draws", 1, "--json"))

    assert (found["parts"], found["trajectories"], found["pool"]) == (2, 6, "2+2")


def test_what_cannot_be_rehearsed_is_refused(tmp_path: Path, trace: Path, profile: Path) -> None:
    """A directory without a store, parts that are not equal, and tool times that nobody knows."""
    empty = invoke(tmp_path, "--gpus", 2, "--profile", profile)
    assert empty.exit_code == 2
    assert "no batch that has finished" in empty.stderr
    uneven = invoke(trace, "--gpus", 3, "--profile", profile, "--parts", 2)
    assert uneven.exit_code == 2
    assert "equal parts" in uneven.stderr
