"""``heddle simulate`` as it is typed: tables, the document, charts, and what is refused."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from cli_simulated import PROFILE, document, written_profile, written_trace
from typer.testing import CliRunner, Result

from heddle.cli.commands import app


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return written_trace(tmp_path)


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    return written_profile(tmp_path)


def invoke(*arguments: object) -> Result:
    """Run the command."""
    return CliRunner().invoke(app, ["simulate", *map(str, arguments)])


def test_the_document_holds_every_run_and_what_was_made_up(trace: Path, profile: Path) -> None:
    """Configurations in the given order, ratios to the first, the same workload for all in a seed."""
    made = document(
        invoke(
            *(
                trace,
                "--profile",
                profile,
                "--gpus",
                4,
                "--compare",
                "sticky,slime,fix1",
                "--slots-per-gpu",
                2,
            ),
            *("--groups", 5, "--samples", 3, "--seeds", 3, "--json"),
        )
    )
    assert ["sticky", "slime", "fix1"] == [one["name"] for one in made["configurations"]]
    assert [0, 1, 2] == made["seeds"]
    assert (15, 5) == (made["workload"]["trajectories"], made["workload"]["groups"])
    assert "5 prompts drawn with replacement from 6" in made["workload"]["notes"][-1]
    first = made["configurations"][0]
    for one in made["configurations"]:
        assert 3 == len(one["runs"])
        spread = one["makespan_s"]
        assert (
            spread["least"] <= spread["mean"] <= spread["most"] == max(r["makespan_s"] for r in one["runs"])
        )
        for run, baseline in zip(one["runs"], first["runs"], strict=True):
            assert run["longest_tokens"] == baseline["longest_tokens"]
            assert 0 < run["budget_bound"]["seconds"] <= run["bound"]["seconds"] <= run["makespan_s"]
            assert pytest.approx(run["makespan_s"] / run["bound"]["seconds"] - 1) == run["regret"]
        ratios = [b["makespan_s"] / r["makespan_s"] for b, r in zip(first["runs"], one["runs"], strict=True)]
        assert pytest.approx(min(ratios)) == one["speedup_over_first"]["least"]
    assert {"4 x tp1"} == {run["pool"] for run in made["configurations"][2]["runs"]}


def test_processes_change_nothing(trace: Path, profile: Path) -> None:
    """Two processes give the figures of one."""
    typed = (trace, "--profile", profile, "--compare", "sticky,heddle", "--seeds", 2, "--groups", 4, "--json")
    assert document(invoke(*typed)) == document(invoke(*typed, "--jobs", 2))


def test_the_tables_are_for_people(trace: Path, profile: Path) -> None:
    """Every configuration twice, the bound and the notes before them."""
    shown = invoke(trace, "--profile", profile, "--compare", "sticky,heddle", "--seeds", 2).stdout
    assert "12 trajectories in 6 groups" in shown
    assert "no pool of 8 GPUs ends this before" in shown
    assert 2 == sum(line.startswith("heddle ") for line in shown.splitlines())
    for heading in ("makespan (s)", "worst", "to 90 %", "regret", "ratio", "interference", "of them again"):
        assert heading in shown
    assert max(map(len, shown.splitlines())) <= 120


def test_a_preset_of_ones_own_is_compared(trace: Path, profile: Path, tmp_path: Path) -> None:
    """From TOML, on the pool that ``--pool`` names."""
    mine = tmp_path / "mine.toml"
    mine.write_text('[presets.mine]\nbase = "sticky"\nscheduler = "shortest_first"\npreemption = true\n')
    made = document(
        invoke(
            *(trace, "--profile", profile, "--compare", "sticky,mine", "--presets", mine, "--seeds", 1),
            *("--gpus", 3, "--pool", "2+1", "--json"),
        )
    )
    settings = made["configurations"][1]["settings"]
    assert ("shortest_first", "sticky_least_loaded") == (settings["scheduler"], settings["placer"])
    assert "1 x tp2 + 1 x tp1" == made["configurations"][1]["runs"][0]["pool"]


def test_unknown_tool_times_ask_for_the_option() -> None:
    """And are drawn where it is given."""
    shipped = ("math_agent", "--gpu", "h100_sxm", "--model", "Qwen3-8B", "--compare", "sticky", "--seeds", 1)
    refused = invoke(*shipped)
    assert 2 == refused.exit_code
    assert "--tool-times: math_agent lacks" in refused.stderr
    made = document(invoke(*shipped, "--tool-times", "exponential:mean=0.1", "--json"))
    assert "drawn from exponential:mean=0.1" in made["workload"]["notes"][-1]


def test_gzipped_traces_are_read_and_cuts_are_told(trace: Path, profile: Path) -> None:
    """Whatever the file is called."""
    packed = trace.with_suffix(".gz")
    packed.write_bytes(gzip.compress(trace.read_bytes()))
    typed = (packed, "--profile", profile, "--compare", "sticky", "--seeds", 1, "--json")
    made = document(invoke(*typed, "--max-tool-seconds", 0.5, "--max-context", 200))
    notes = made["workload"]["notes"]
    assert ["4 of 12 trajectories left out: context above 200", "8 tool times cut to 0.5 s"] == notes
    packed.write_bytes(packed.read_bytes()[:-9])
    assert "damaged gzip" in invoke(*typed).stderr


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (("nowhere",), "no such file, nor one of the shipped traces"),
        (("coding_agent",), "more than one gpu"),
        (("coding_agent", "--compare", "sticky,sticky"), "twice"),
        (("coding_agent", "--compare", "nobody"), "unknown preset 'nobody'"),
        (("coding_agent", "--seeds", "0"), "--seeds"),
        (("coding_agent", "--jobs", "0"), "--jobs"),
        (("coding_agent", "--groups", "0"), "--groups"),
        (("coding_agent", "--max-context", "1"), "--max-context"),
        (("coding_agent", "--pool", "8+8"), "pool"),
    ],
)
def test_what_makes_no_sense_is_refused(typed: tuple[str, ...], message: str) -> None:
    """As wrong usage, with what to mend."""
    machine = () if len(typed) == 1 else ("--gpu", "h100_sxm", "--model", "Qwen3-14B")
    result = invoke(*typed, *machine)
    assert 2 == result.exit_code
    assert message in result.stderr


def test_what_no_engine_would_do_is_told(trace: Path, profile: Path) -> None:
    """A trajectory larger than a worker's memory runs by itself, and the table says so."""
    profile.write_text(PROFILE.replace(",20000", ",100"))
    result = invoke(trace, "--profile", profile, "--compare", "sticky", "--seeds", 1)
    assert "sticky, seed 0:" in result.stdout
    assert "larger than the whole KV memory" in result.stdout


def test_charts_are_drawn(trace: Path, profile: Path, tmp_path: Path) -> None:
    """A PNG of the first seed, where matplotlib is there."""
    pytest.importorskip("matplotlib")
    picture = tmp_path / "charts.png"
    result = invoke(
        trace, "--profile", profile, "--compare", "sticky,heddle", "--seeds", 1, "--plot", picture
    )
    assert result.exit_code == 0, result.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_killed_it_leaves_no_process_behind() -> None:
    """Its workers wait for work on pipes that they hold open themselves: nothing else would end them."""
    program = """
import os, time
from heddle.cli.simulate import process_pool
if __name__ == "__main__":
    with process_pool(2) as pool:
        print(*{pool.submit(os.getpid).result() for _ in range(2)}, flush=True)
        time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        workers = [psutil.Process(int(pid)) for pid in started.stdout.readline().split()]
        started.kill()
    assert workers
    assert psutil.wait_procs(workers, timeout=30)[1] == []
