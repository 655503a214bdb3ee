"""``heddle serve --dry-run``: how SGLang servers would start, without a GPU at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner, Result

from heddle.cli.commands import app

POOLS = {1: "1", 2: "1+1", 4: "2+1+1", 8: "4+2+1+1"}


def invoke(*arguments: str) -> Result:
    """A dry run for a model that nobody has to have."""
    typed = ["serve", "--dry-run", "--engine", "sglang", "--model", "Qwen/Qwen3-14B", *arguments]
    return CliRunner().invoke(app, typed)


def workers(result: Result) -> list[dict[str, Any]]:
    """The workers of the one document on stdout."""
    assert result.exit_code == 0, result.stderr
    document: dict[str, list[dict[str, Any]]] = orjson.loads(result.stdout)
    return document["workers"]


@pytest.mark.parametrize(("gpus", "pool"), POOLS.items())
def test_every_server_has_gpus_and_ports_of_its_own(gpus: int, pool: str) -> None:
    """For 1, 2, 4 and 8 GPUs: all are used, none twice."""
    planned = workers(invoke("--gpus", f"0-{gpus - 1}", "--pool", pool, "--slots", "64", "--json"))
    assert [worker["tp_degree"] for worker in planned] == [int(degree) for degree in pool.split("+")]
    visible = [worker["environment"]["CUDA_VISIBLE_DEVICES"] for worker in planned]
    assert sorted(",".join(visible).split(",")) == [str(index) for index in range(gpus)]
    ports = [worker["ports"] for worker in planned]
    named = [port[name] for port in ports for name in ("http", "nccl", "rendezvous", "last")]
    assert len(set(named)) == len(named)
    caches = [worker["environment"]["TRITON_CACHE_DIR"] for worker in planned]
    assert len(set(caches)) == len(planned)
    for worker in planned:
        assert worker["command"][:3] == ["python", "-m", "sglang.launch_server"]
        assert worker["slots"] == 64


def test_the_text_is_what_to_type() -> None:
    """One command a server, with its environment."""
    result = invoke("--gpus", "0,1", "--pool", "1+1")
    assert result.exit_code == 0, result.stderr
    titles = [line for line in result.stdout.splitlines() if line.startswith("# ")]
    commands = [line for line in result.stdout.splitlines() if line.startswith("env -u ")]
    assert titles == [
        "# w0: degree 1 on devices 0, 4 slots, http://127.0.0.1:30000",
        "# w1: degree 1 on devices 1, 4 slots, http://127.0.0.1:30016",
    ]
    assert len(commands) == 2
    assert "CUDA_VISIBLE_DEVICES=1" in commands[1]
    assert "--model-path Qwen/Qwen3-14B" in commands[1]


def test_servers_that_share_prefixes_are_told_so(tmp_path: Path) -> None:
    """The same store for all degrees; nothing is made for a dry run."""
    arguments = [
        *("--gpus", "0-2", "--pool", "2+1", "--set", f"data_dir={tmp_path / 'data'}"),
        *("--set", "engine.sglang.prefix_store.kind=heddle"),
        *("--set", "engine.sglang.prefix_store.kv_heads=8"),
        *("--set", f"engine.sglang.prefix_store.directory={tmp_path / 'memory'}"),
        *("--set", "engine.sglang.prefix_store.budget_gib=1.5"),
    ]
    planned = workers(invoke(*arguments, "--json"))
    commands = [worker["command"] for worker in planned]
    flag = "--hicache-storage-backend-extra-config"
    configs = {command[command.index(flag) + 1] for command in commands}
    assert len(configs) == 1
    config = orjson.loads(configs.pop())
    assert (config["kv_heads"], config["budget_bytes"]) == (8, 3 * 2**29)
    assert config["root"] == str(tmp_path / "memory")
    for worker in planned:
        assert str(tmp_path / "data" / "sglang") in worker["environment"]["PYTHONPATH"]
    assert list(tmp_path.iterdir()) == []
    unknown = invoke(*arguments[:-6])
    assert unknown.exit_code == 2
    assert "cannot tell the KV heads of the model" in unknown.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--gpus", "0-1", "--pool", "2+1"), "pool 2+1 needs 3 units but there are 2"),
        (("--gpus", "0", "--pool", "1+1"), "pool 1+1 does not fit on 1 devices"),
        (("--gpus", "none"), "engine.sglang.gpus: 'none' is neither"),
        (("--worker", "http://127.0.0.1:30000"), "only SGLang servers that Heddle starts"),
        (("--gpus", "0", "--set", 'engine.sglang.extra_args=["--port", "1"]'), "--port is set by Heddle"),
    ],
)
def test_what_cannot_be_started_is_refused(arguments: tuple[str, ...], message: str) -> None:
    """With the setting at fault; exit code 2."""
    result = invoke(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in " ".join(result.stderr.split())


def test_another_engine_has_nothing_to_show(tmp_path: Path) -> None:
    """Rather than starting it."""
    result = CliRunner().invoke(app, ["serve", "--dry-run", "--engine", "fake", "--data-dir", str(tmp_path)])
    assert result.exit_code == 2
    assert list(tmp_path.iterdir()) == []
