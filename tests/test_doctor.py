"""The doctor: findings in, checks out; and one look at the real machine."""

from __future__ import annotations

import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from heddle.config import HeddleConfig, ServerConfig
from heddle.doctor import (
    GIB,
    Check,
    CheckStatus,
    Findings,
    IsolationFinding,
    ModelFinding,
    SGLangFinding,
    can_run,
    diagnose,
)
from heddle.machine import examine


def make_findings() -> Findings:
    """A machine on which everything is well."""
    return Findings(
        python=(3, 12, 1),
        system="Linux 6.1, x86_64",
        cores=8,
        memory_bytes=16 * GIB,
        disk_free_bytes=50 * GIB,
        gpus=(),
        engine_kind="embedded",
        engine_version="1.0",
        model=ModelFinding("small", Path("models/small.gguf"), None),
        isolation=IsolationFinding("bubblewrap; no network", complete=True),
        address="127.0.0.1:8765",
        address_problem=None,
        sqlite_version="3.45.0",
        sqlite_problem=None,
        data_dir=Path("heddle-data"),
        data_dir_problem=None,
    )


def check_named(name: str, findings: Findings) -> Check:
    """The one check of this name."""
    (check,) = [check for check in diagnose(findings) if check.name == name]
    return check


def test_a_healthy_machine_has_nothing_to_mend() -> None:
    """All ok, and no remedy beside an ok."""
    checks = diagnose(make_findings())
    assert {check.status for check in checks} == {CheckStatus.OK}
    assert {check.remedy for check in checks} == {None}
    assert can_run(checks)


@pytest.mark.parametrize(
    ("changed", "name", "status"),
    [
        (replace(make_findings(), python=(3, 10, 9)), "python", CheckStatus.FAIL),
        (replace(make_findings(), cores=1), "cores", CheckStatus.WARN),
        (replace(make_findings(), memory_bytes=GIB // 2), "memory", CheckStatus.WARN),
        (replace(make_findings(), disk_free_bytes=GIB // 2), "disk", CheckStatus.WARN),
        (replace(make_findings(), engine_version=None), "engine", CheckStatus.FAIL),
        (replace(make_findings(), model=ModelFinding("x.gguf", None, None)), "model", CheckStatus.FAIL),
        (
            replace(make_findings(), model=ModelFinding("small", None, None, can_be_brought=True)),
            "model",
            CheckStatus.WARN,
        ),
        (
            replace(make_findings(), model=ModelFinding("small", Path("x.gguf"), "wrong sum")),
            "model",
            CheckStatus.FAIL,
        ),
        (
            replace(make_findings(), isolation=IsolationFinding("rlimits; open network", False)),
            "sandbox",
            CheckStatus.WARN,
        ),
        (
            replace(make_findings(), isolation=IsolationFinding("namespaces", True, calls_filtered=False)),
            "sandbox",
            CheckStatus.WARN,
        ),
        (
            replace(make_findings(), isolation=IsolationFinding("", False, "bwrap is absent")),
            "sandbox",
            CheckStatus.FAIL,
        ),
        (replace(make_findings(), address_problem="Address already in use"), "port", CheckStatus.WARN),
        (replace(make_findings(), sqlite_problem="no write-ahead log"), "sqlite", CheckStatus.FAIL),
        (replace(make_findings(), data_dir_problem="read-only"), "data directory", CheckStatus.FAIL),
    ],
)
def test_each_trouble_is_told_with_its_remedy(changed: Findings, name: str, status: CheckStatus) -> None:
    """Only the check concerned changes, and a failure is what keeps the main job from running."""
    check = check_named(name, changed)
    assert check.status is status
    assert check.remedy
    assert can_run(diagnose(changed)) is (status is not CheckStatus.FAIL)
    assert [other.name for other in diagnose(changed) if other.status is not CheckStatus.OK] == [name]


def test_the_fake_engine_needs_neither_package_nor_model() -> None:
    """What is not used cannot be missing."""
    findings = replace(
        make_findings(), engine_kind="fake", engine_version=None, model=ModelFinding("small", None, None)
    )
    assert can_run(diagnose(findings))


SGLANG = replace(
    make_findings(),
    engine_kind="sglang",
    engine_version=None,
    sglang=SGLangFinding(command="python -m sglang.launch_server", version="0.5.23", devices=8),
)


@pytest.mark.parametrize(
    ("sglang", "name"),
    [
        (SGLangFinding(command="python -m sglang.launch_server"), "engine"),
        (SGLangFinding(version="0.5.23", device_problem="no usable NVIDIA driver"), "gpus"),
        (SGLangFinding(version="0.5.23", devices=1, tokenizer_problem="no tokenizer.json"), "model"),
    ],
)
def test_what_sglang_lacks_keeps_it_from_running(sglang: SGLangFinding, name: str) -> None:
    """The package, the GPUs, the tokenizer: each by the check that it belongs to."""
    assert {check.status for check in diagnose(SGLANG)} == {CheckStatus.OK}
    changed = replace(SGLANG, sglang=sglang)
    assert [check.name for check in diagnose(changed) if check.status is CheckStatus.FAIL] == [name]


def test_servers_that_run_elsewhere_need_nothing_here() -> None:
    """Neither a package nor a GPU."""
    findings = replace(SGLANG, sglang=SGLangFinding(attached=("http://127.0.0.1:30000",)))
    assert can_run(diagnose(findings))
    assert "http://127.0.0.1:30000" in check_named("engine", findings).finding


def test_the_python_of_the_command_is_asked_for_sglang(tmp_path: Path) -> None:
    """This one has none, and no GPU is looked for where servers run on the CPU."""
    engine = {
        "kind": "sglang",
        "model": str(tmp_path),
        "sglang": {"device": "cpu", "command": [sys.executable]},
    }
    config = HeddleConfig.model_validate({"data_dir": tmp_path, "server": {"port": 0}, "engine": engine})
    found = examine(config).sglang
    assert found is not None
    assert (found.version, found.device_problem) == (None, None)
    assert found.devices >= 1
    assert f"no tokenizer.json in {str(tmp_path)!r}" in (found.tokenizer_problem or "")


def test_gpus_are_listed() -> None:
    """They are told even though the embedded engine leaves them alone."""
    findings = replace(make_findings(), gpus=("NVIDIA H100, 81559 MiB", "NVIDIA H100, 81559 MiB"))
    assert check_named("gpus", findings).finding == "NVIDIA H100, 81559 MiB; NVIDIA H100, 81559 MiB"


def test_examining_this_machine_leaves_nothing_behind(tmp_path: Path) -> None:
    """The data directory is not made, and no probe stays in its parent."""
    config = HeddleConfig(data_dir=tmp_path / "deep" / "data", server=ServerConfig(port=0))
    findings = examine(config)
    assert (findings.data_dir_problem, findings.sqlite_problem) == (None, None)
    assert findings.cores >= 1
    assert list(tmp_path.iterdir()) == []


def test_a_taken_port_is_found(tmp_path: Path) -> None:
    """Somebody listens where the server would."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        findings = examine(HeddleConfig(data_dir=tmp_path, server=ServerConfig(port=port)))
    assert findings.address_problem == "Address already in use"


def test_a_data_directory_that_is_a_file_is_a_failure(tmp_path: Path) -> None:
    """The nearest existing path is no folder."""
    blocker = tmp_path / "file"
    blocker.write_text("x")
    findings = examine(HeddleConfig(data_dir=blocker / "data", server=ServerConfig(port=0)))
    assert check_named("data directory", findings).status is CheckStatus.FAIL
