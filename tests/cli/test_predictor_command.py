"""``heddle predictor`` reads what there is, trains, judges, and complains with file and line."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from heddle.cli.commands import app
from heddle.cli.recordings import read_recordings
from heddle.errors import InvalidRequest


def trace_lines(prompts: int, samples: int = 4) -> list[str]:
    """Traces of which the first step tells how many follow."""
    rng = random.Random(3)
    lines = []
    for prompt in range(prompts):
        for sample in range(samples):
            count, size = rng.randint(1, 6), rng.randint(50, 400)
            steps = [
                {
                    "prompt_tokens": 20,
                    "output_tokens": round(size * rng.lognormvariate(0.0, 0.2)),
                    "tool_name": "python",
                    "tool_seconds": 0.5,
                }
                for _ in range(count)
            ]
            steps[-1]["tool_name"] = None
            row = {"trajectory_id": f"p{prompt}/s{sample}", "prompt_id": f"p{prompt}", "steps": steps}
            lines.append(json.dumps(row))
    return lines


def run(*arguments: str) -> tuple[int, str]:
    """Exit code and standard output."""
    result = CliRunner().invoke(app, ["predictor", *arguments])
    return result.exit_code, result.stdout


def test_eval_scores_every_baseline_by_step(tmp_path: Path) -> None:
    """Of gzipped traces, without any model, as JSON."""
    path = tmp_path / "traces.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(trace_lines(100)).encode()))
    code, out = run("eval", str(path), "--models", "none", "--json")
    assert code == 0
    predictors = {one["predictor"]: one for one in json.loads(out)["predictors"]}
    assert list(predictors) == ["mean_by_step", "prompt_history", "prompt_only", "progressive"]
    best = predictors["progressive"]
    assert best["overall"]["points"] > 100
    assert best["overall"]["spearman"] > predictors["mean_by_step"]["overall"]["spearman"]
    assert list(best["by_step"])[:2] == ["0", "1"]
    assert set(best["calibration"]) == {"0.05", "0.1", "0.5", "0.9", "0.95"}


def test_a_table_without_rows_is_left_out(tmp_path: Path) -> None:
    """Of a few trajectories too little is known for the later ones."""
    path = tmp_path / "traces.jsonl"
    path.write_text("\n".join(trace_lines(20)))
    code, out = run("eval", str(path), "--models", "none")
    assert code == 0
    assert "progressive, by finished steps" in out
    assert "the same trajectories" not in out


def test_train_writes_what_a_coordinator_reads(tmp_path: Path) -> None:
    """The models, and the state of ``progressive`` beside them."""
    pytest.importorskip("lightgbm", reason="the extra 'learn' is not installed")
    from heddle.predict import make_predictor
    from heddle.predict.models.catalogue import load_model, trained_models

    path, folder = tmp_path / "traces.jsonl", tmp_path / "models"
    path.write_text("\n".join(trace_lines(40)))
    code, _ = run("train", str(path), "--out", str(folder), "--models", "features")
    assert code == 0
    assert trained_models(folder) == ["features"]
    load_model("features", folder)
    make_predictor("progressive").restore(json.loads((folder / "progressive.json").read_text()))


def test_points_are_joined_to_trajectories(tmp_path: Path) -> None:
    """Rows of one trajectory in any order; the split is the file's own; outcomes are read from the text."""
    rows = [
        {
            "trajectory_id": "t",
            "prompt_id": "p",
            "source": "s",
            "split": "test",
            "steps_done": done,
            "output_tokens_done": 100 * done,
            "context_tokens": 50 + 120 * done,
            "last_tool": "a+b" if done else None,
            "last_tool_seconds": 2.0 if done else None,
            "remaining_output_tokens": 300 - 100 * done,
            "remaining_steps": 3 - done,
            "text": "User: x" + "\nAssistant: y\nTool: Error: no" * done,
        }
        for done in (2, 0, 1)
    ]
    path = tmp_path / "points.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    (trajectory,) = read_recordings(path)
    assert (trajectory.total_tokens, trajectory.total_steps, trajectory.held_out) == (300, 3, True)
    assert [point.generated_tokens for point in trajectory.points] == [0, 100, 200]
    step = trajectory.points[2].last_step
    assert (step.output_tokens, step.appended_tokens) == (100, 20)
    assert (step.tool_names, step.tool_outcomes, trajectory.tool_seconds) == (("a", "b"), ("error",), 4.0)


@pytest.mark.parametrize(
    ("content", "where"),
    [
        ("", "bad.jsonl"),
        ("nonsense", "bad.jsonl:1"),
        ('{"trajectory_id":"t","steps":[]}', "bad.jsonl:1: steps"),
        ('{"trajectory_id":"t","steps":[{"output_tokens":3}]}\n\n{"steps":[]}', "bad.jsonl:3: trajectory_id"),
        ('{"steps_done":-1}', "bad.jsonl:1: trajectory_id"),
    ],
)
def test_complaints_name_file_line_and_field(tmp_path: Path, content: str, where: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(content)
    with pytest.raises(InvalidRequest) as caught:
        read_recordings(path)
    assert caught.value.path is not None
    assert caught.value.path.endswith(where)


def test_records_of_a_run_are_read(tmp_path: Path) -> None:
    """Those that Heddle writes itself: a golden one."""
    golden = Path(__file__).parents[1] / "export" / "golden" / "record.jsonl"
    for trajectory in read_recordings(golden):
        assert trajectory.points[0].steps_done == 0
        assert trajectory.total_tokens > trajectory.points[-1].generated_tokens
        assert all(point.text is not None for point in trajectory.points)
