"""``heddle plan`` as it is typed: the document, the tables, and what is refused."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from cli_simulated import document
from typer.testing import CliRunner, Result

from heddle.cli.commands import app

LENGTHS = "900\n100\n400\n100\n30\n"
SHIPPED = ("--gpu", "h100_sxm", "--model", "Qwen3-14B")
PROFILE = "tp,batch,tpot_ms\n1,1,10\n1,2,12\n2,1,6\n2,2,7\n"


def invoke(*arguments: str | Path, lengths: str = LENGTHS) -> Result:
    """Plan for lengths on standard input."""
    typed = ["plan", "--lengths", "-", *map(str, arguments)]
    return CliRunner().invoke(app, typed, input=lengths.encode())


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """A profile that names neither GPU nor model."""
    path = tmp_path / "profile.csv"
    path.write_text(PROFILE)
    return path


def test_the_document_has_the_promised_keys() -> None:
    """Those and no others, whatever the planner."""
    for allocator in ("exact", "annealing", "drain"):
        made = document(
            invoke("--gpus", "8", *SHIPPED, "--allocator", allocator, "--deadline", "0.05", "--json")
        )
        assert ["makespan_s", "lower_bound_s", "workers", "compared", "solve_ms"] == list(made)
        for worker in made["workers"]:
            assert ["tp", "size", "first_length", "seconds"] == list(worker)
        assert ["fix-1", "fix-2", "fix-4", "fix-8"] == [other["name"] for other in made["compared"]]
        assert 5 == sum(worker["size"] for worker in made["workers"])
        assert 8 >= sum(worker["tp"] for worker in made["workers"])
        assert made["makespan_s"] == max(worker["seconds"] for worker in made["workers"])
        assert 0 < made["lower_bound_s"] <= made["makespan_s"]
        assert made["solve_ms"] > 0


def test_the_static_price_is_that_of_the_longest_at_the_size_of_its_group(profile: Path) -> None:
    """Computed by hand: one worker of each degree at most, the longest alone on the faster one."""
    made = document(
        invoke(
            *("--gpus", "3", "--profile", profile, "--placer", "exact", "--allocator", "exact", "--json"),
            lengths="1000\n500\n",
        )
    )
    assert [
        {"tp": 2, "size": 1, "first_length": 1000.0, "seconds": 6.0},
        {"tp": 1, "size": 1, "first_length": 500.0, "seconds": 5.0},
    ] == made["workers"]
    assert 6.0 == made["makespan_s"]


def test_degrees_are_limited(profile: Path) -> None:
    """Only what ``--degrees`` names is used."""
    made = document(invoke("--gpus", "4", "--profile", profile, "--degrees", "1", "--json"))
    assert {1} == {worker["tp"] for worker in made["workers"]}


def test_a_fixed_pool_takes_the_only_degree(profile: Path) -> None:
    """``--degrees 2`` says it all."""
    given = ("--gpus", "4", "--profile", profile, "--allocator", "fixed", "--json")
    assert [2, 2] == [w["tp"] for w in document(invoke(*given, "--degrees", "2"))["workers"]]
    assert [1] * 4 == [w["tp"] for w in document(invoke(*given, "--fixed-degree", "1"))["workers"]]
    refused = invoke(*given)
    assert (2, "") != (refused.exit_code, refused.stderr)
    assert "--fixed-degree" in refused.stderr


def test_no_trajectories_are_an_empty_plan(profile: Path) -> None:
    """Nothing to do takes no time."""
    made = document(invoke("--gpus", "4", "--profile", profile, "--json", lengths="\n"))
    assert (0.0, 0.0) == (made["makespan_s"], made["lower_bound_s"])
    assert 0 == sum(worker["size"] for worker in made["workers"])
    assert 0 == invoke("--gpus", "4", "--profile", profile, lengths="").exit_code


def test_less_trust_makes_lengths_alike(profile: Path) -> None:
    """At no trust every trajectory counts as the mean of the high quantiles."""
    hedged = '{"tokens": 100, "quantiles": {"0.9": 300}}\n{"tokens": 10, "quantiles": {"0.9": 100}}\n'
    given = ("--gpus", "2", "--profile", profile, "--allocator", "exact", "--degrees", "1", "--json")
    firsts = {
        trust: sorted(
            w["first_length"] for w in document(invoke(*given, "--trust", trust, lengths=hedged))["workers"]
        )
        for trust in ("1", "0")
    }
    assert {"1": [10.0, 100.0], "0": [200.0, 200.0]} == firsts


def test_the_same_seed_gives_the_same_plan() -> None:
    """Annealing is random, yet repeatable."""
    given = ("--gpus", "8", *SHIPPED, "--allocator", "annealing", "--seed", "3", "--deadline", "60", "--json")
    first, second = (document(invoke(*given)) for _ in range(2))
    assert first["workers"] == second["workers"]


def test_the_tables_are_for_people(profile: Path) -> None:
    """Workers, the homogeneous pools and the bound."""
    shown = invoke("--gpus", "2", "--profile", profile, "--allocator", "exact").stdout
    for word in (
        "5 trajectories on 2 GPUs",
        "longest (tokens)",
        "this plan",
        "fix-1",
        "fix-2",
        "lower bound",
    ):
        assert word in shown


@pytest.mark.parametrize(
    ("arguments", "lengths", "named"),
    [
        (SHIPPED, "1\nnan\n", "<stdin>:2"),
        (SHIPPED, '{"tokens": -3}\n', "<stdin>:1: tokens"),
        ((), LENGTHS, "h100_sxm"),
        (("--gpu", "h100_sxm"), LENGTHS, "Qwen3-14B"),
        (("--gpu", "abacus", "--model", "Qwen3-14B"), LENGTHS, "abacus"),
        ((*SHIPPED, "--degrees", "1,two"), LENGTHS, "--degrees"),
        ((*SHIPPED, "--degrees", "0"), LENGTHS, "--degrees"),
        ((*SHIPPED, "--degrees", "3"), LENGTHS, "degree 3"),
        ((*SHIPPED, "--degrees", "8"), LENGTHS, "exceeds the budget of 4 GPUs"),
        ((*SHIPPED, "--trust", "1.5"), LENGTHS, "trust"),
        ((*SHIPPED, "--context", "nan"), LENGTHS, "context"),
        ((*SHIPPED, "--kv-heads", "0"), LENGTHS, "kv_heads"),
        ((*SHIPPED, "--slots-per-gpu", "0"), LENGTHS, "slots_per_gpu"),
        (("--profile", "absent.csv"), LENGTHS, "absent.csv"),
    ],
)
def test_bad_input_exits_with_2_and_a_reason(arguments: tuple[str, ...], lengths: str, named: str) -> None:
    """In text and as a document."""
    shown = invoke("--gpus", "4", *arguments, lengths=lengths)
    assert 2 == shown.exit_code
    assert named in shown.stderr
    told = orjson.loads(invoke("--gpus", "4", *arguments, "--json", lengths=lengths).stdout)
    assert {"error"} == set(told)
    assert named in f"{told['error']['path']}: {told['error']['message']}"


@pytest.mark.parametrize("gpus", ["0", "-1"])
def test_no_gpus_are_refused(gpus: str) -> None:
    """Also without trajectories: the question itself is wrong."""
    for lengths in (LENGTHS, ""):
        refused = invoke("--gpus", gpus, *SHIPPED, lengths=lengths)
        assert 2 == refused.exit_code
        assert "the budget must be" in refused.stderr


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "missing column"),
        (b"tp,batch\n1,1\n", "tpot_ms"),
        (b"tp,batch,tpot_ms\n1,2,10\n", "no row for batch 1"),
        (b"tp,batch,tpot_ms\n1,1,-10\n", "line 2"),
        (b"\xff\xfe", "UTF-8"),
    ],
)
def test_a_bad_profile_is_named(tmp_path: Path, content: bytes, named: str) -> None:
    """By its path."""
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    refused = invoke("--gpus", "4", "--profile", path)
    assert 2 == refused.exit_code
    assert str(path) in refused.stderr
    assert named in refused.stderr
