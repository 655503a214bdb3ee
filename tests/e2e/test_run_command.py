"""``heddle run`` on shipped tasks and the real engine, and its file as trainers want it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import orjson
import pyarrow.parquet as pq
import pytest
from record_checks import assert_sound, assert_token_exact, by_environment
from server_process import POOL, replays_equal, run_heddle

from heddle.export.files import read_trajectories

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

OPTIONS = (
    *("--pool", POOL, "--samples", "2", "--constrained", "--seed", "1"),
    *("--max-steps", "2", "--max-tokens", "64", "--max-tokens-per-step", "32"),
)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a run: one task of each environment, two samples."""
    folder = tmp_path_factory.mktemp("run")
    out = folder / "trajectories.jsonl"
    tasks = run_heddle("tasks", "math", "code", "search", "--limit", "1").stdout
    files = ("--out", out, "--data-dir", folder / "data")
    result = run_heddle("run", "-", *files, *OPTIONS, "--json", stdin=tasks)
    assert result.returncode == 0, result.stderr
    summary = orjson.loads(result.stdout)
    assert (summary["trajectories"], summary["cancelled"]) == (6, False)
    return out


def test_a_run_writes_sound_records(out: Path) -> None:
    """Of all three environments; the reader of trajectories takes them."""
    records = list(read_trajectories(out))
    assert by_environment(records) == {"code": 2, "math": 2, "search": 2}
    for record in records:
        assert_token_exact(record)
        assert_sound(record)


def test_the_event_log_of_a_run_replays_equal(out: Path) -> None:
    """As that of a server."""
    [log] = (out.parent / "data" / "events").glob("*.jsonl")
    assert replays_equal(log)


@pytest.mark.parametrize("fmt", ["jsonl", "parquet", "verl", "slime"])
def test_a_run_can_be_exported(out: Path, tmp_path: Path, fmt: str) -> None:
    """Every record that is a sample; the commands say how many those were."""
    exported = tmp_path / "exported"
    result = run_heddle("export", out, "--format", fmt, "--out", exported, "--json")
    assert result.returncode == 0, result.stderr
    summary = orjson.loads(result.stdout)
    assert (summary["written"], summary["excluded"]) == (6, [])
    records = list(read_trajectories(out))
    sampled = sum(record.sampled_tokens for record in records)
    match fmt:
        case "jsonl":
            assert list(read_trajectories(exported)) == records
        case "parquet":
            masks = pq.read_table(exported).column("response_mask").to_pylist()
            assert sum(map(sum, masks)) == sampled
        case "verl":
            with np.load(exported, allow_pickle=False) as batch:
                assert int(batch["response_mask"].sum()) == sampled
        case "slime":
            samples = [orjson.loads(line) for line in exported.read_bytes().splitlines()]
            assert sum(sum(sample["loss_mask"]) for sample in samples) == sampled
