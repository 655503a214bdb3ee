"""``heddle doctor``: what is here, what is missing, and the command that mends it.

Two halves: ``heddle.machine`` looks around and returns plain :class:`Findings`; :func:`diagnose` turns
findings into checks and is pure. ``FAIL`` is kept for what keeps the main job (``heddle run`` and
``heddle serve``) from running; what merely limits it is a ``WARN``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from heddle.errors import ConfigError

GIB = 1024**3

MIN_PYTHON = (3, 11)
MIN_MEMORY_BYTES = 1 * GIB
"""Two embedded engines take about 250 MB each, the coordinator and a sandbox the rest."""
MIN_DISK_BYTES = 1 * GIB
"""Virtual environment, model and wheel together take about half of it."""


class CheckStatus(StrEnum):
    """What a check means for the main job."""

    OK = "ok"
    WARN = "warn"
    """It runs, with a limit that the finding names."""
    FAIL = "fail"
    """It cannot run until the remedy is applied."""


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the diagnosis; ``remedy`` is a command or a setting to change."""

    name: str
    status: CheckStatus
    finding: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class ModelFinding:
    """The model that the configuration names."""

    name: str
    path: Path | None
    """Where it lies; None where it is not here yet."""
    problem: str | None
    """Why what lies there cannot be used; None where it can."""
    can_be_brought: bool = False
    """Whether Heddle brings it by itself at the first run."""


@dataclass(frozen=True, slots=True)
class IsolationFinding:
    """The sandbox's isolation in force, as a sentence."""

    detail: str
    complete: bool
    """Whether generated code is kept from the network, files and processes of this machine."""
    problem: str | None = None
    """Why there is none: the configured mode is not to be had here."""
    calls_filtered: bool = True
    """Whether the kernel filters system calls that no tool needs."""


@dataclass(frozen=True, slots=True)
class SGLangFinding:
    """What SGLang servers would find here, or which ones run already."""

    attached: tuple[str, ...] = ()
    """URLs of servers that somebody else runs; nothing else is needed then."""
    command: str = ""
    """What starts a server."""
    version: str | None = None
    """Of the package that the command would run; None where there is none."""
    devices: int = 0
    """GPUs, or cores where servers run on the CPU."""
    device_problem: str | None = None
    tokenizer_problem: str | None = None


@dataclass(frozen=True, slots=True)
class Findings:
    """What was seen; sizes in bytes."""

    python: tuple[int, int, int]
    system: str
    cores: int
    memory_bytes: int
    disk_free_bytes: int
    gpus: tuple[str, ...]
    engine_kind: str
    engine_version: str | None
    """Of the embedded engine's package; None where it is not installed."""
    model: ModelFinding
    isolation: IsolationFinding
    address: str
    """Where ``heddle serve`` would listen."""
    address_problem: str | None
    sqlite_version: str
    sqlite_problem: str | None
    data_dir: Path
    data_dir_problem: str | None
    sglang: SGLangFinding | None = None
    """Where it is the engine."""


def diagnose(findings: Findings) -> list[Check]:
    """Judge what was found. Pure."""
    return [
        _python(findings),
        Check("system", CheckStatus.OK, findings.system),
        _cores(findings),
        _memory(findings),
        _disk(findings),
        _gpus(findings),
        _engine(findings),
        _model(findings),
        _isolation(findings),
        _address(findings),
        _sqlite(findings),
        _data_dir(findings),
    ]


def can_run(checks: Sequence[Check]) -> bool:
    """Whether the main job can run."""
    return all(check.status is not CheckStatus.FAIL for check in checks)


def bad_config(error: ConfigError) -> Check:
    """The check of a configuration that could not be read; nothing else can be judged then."""
    return Check("configuration", CheckStatus.FAIL, str(error), "correct the key that the message names")


# ----------------------------------------------------------------------------------------- judging


def _python(findings: Findings) -> Check:
    version = ".".join(map(str, findings.python))
    if findings.python < MIN_PYTHON:
        return Check(
            "python", CheckStatus.FAIL, f"{version}; 3.11 or newer is needed", "install Python 3.11 or newer"
        )
    return Check("python", CheckStatus.OK, version)


def _cores(findings: Findings) -> Check:
    if findings.cores < 2:
        return Check(
            "cores",
            CheckStatus.WARN,
            "1; two workers would share it",
            "heddle run TASKS.jsonl --out OUT.jsonl --pool 1",
        )
    return Check("cores", CheckStatus.OK, str(findings.cores))


def _memory(findings: Findings) -> Check:
    finding = f"{findings.memory_bytes / GIB:.1f} GiB available"
    if findings.memory_bytes < MIN_MEMORY_BYTES:
        return Check(
            "memory",
            CheckStatus.WARN,
            f"{finding}; two engines want 1 GiB",
            "heddle serve --pool 1 --slots 2",
        )
    return Check("memory", CheckStatus.OK, finding)


def _disk(findings: Findings) -> Check:
    finding = f"{findings.disk_free_bytes / GIB:.1f} GiB free"
    if findings.disk_free_bytes < MIN_DISK_BYTES:
        return Check("disk", CheckStatus.WARN, finding, "heddle serve --data-dir ON_A_LARGER_DISK")
    return Check("disk", CheckStatus.OK, finding)


def _gpus(findings: Findings) -> Check:
    sglang = findings.sglang
    if sglang is not None and sglang.device_problem is not None:
        remedy = "heddle serve --worker URL   (uses servers elsewhere)"
        return Check("gpus", CheckStatus.FAIL, sglang.device_problem, remedy)
    if findings.gpus:
        return Check("gpus", CheckStatus.OK, "; ".join(findings.gpus))
    return Check("gpus", CheckStatus.OK, "none; engines run on the CPU")


def _engine(findings: Findings) -> Check:
    if findings.sglang is not None:
        return _sglang(findings.sglang)
    if findings.engine_kind != "embedded":
        return Check("engine", CheckStatus.OK, f"{findings.engine_kind} (no package needed)")
    if findings.engine_version is None:
        return Check(
            "engine",
            CheckStatus.FAIL,
            "the embedded engine is not installed",
            "pip install 'heddle[embedded]'",
        )
    return Check("engine", CheckStatus.OK, f"embedded, xllamacpp {findings.engine_version}")


def _sglang(sglang: SGLangFinding) -> Check:
    if sglang.attached:
        return Check("engine", CheckStatus.OK, f"SGLang, running at {', '.join(sglang.attached)}")
    if sglang.version is None:
        remedy = "pip install sglang where that runs, or set engine.sglang.command"
        return Check("engine", CheckStatus.FAIL, f"{sglang.command!r} would find no SGLang", remedy)
    return Check("engine", CheckStatus.OK, f"SGLang {sglang.version} on {sglang.devices} devices")


def _model(findings: Findings) -> Check:
    model = findings.model
    if findings.sglang is not None:
        problem = findings.sglang.tokenizer_problem
        if problem is not None:
            return Check("model", CheckStatus.FAIL, problem, "set engine.model or engine.tokenizer")
        return Check("model", CheckStatus.OK, model.name)
    if findings.engine_kind != "embedded":
        return Check("model", CheckStatus.OK, f"none needed by the {findings.engine_kind} engine")
    if model.path is None and model.can_be_brought:
        return Check(
            "model",
            CheckStatus.WARN,
            f"{model.name} is not here; the first run brings it, which needs the network",
            "heddle model",
        )
    if model.path is None:
        return Check("model", CheckStatus.FAIL, f"{model.name} is no GGUF file", "set engine.model")
    if model.problem is not None:
        return Check(
            "model", CheckStatus.FAIL, f"{model.path}: {model.problem}", f"rm {model.path} && heddle model"
        )
    return Check("model", CheckStatus.OK, f"{model.name} in {model.path}")


def _isolation(findings: Findings) -> Check:
    isolation = findings.isolation
    if isolation.problem is not None:
        return Check("sandbox", CheckStatus.FAIL, isolation.problem, "set tools.isolation to auto")
    if not isolation.complete:
        return Check("sandbox", CheckStatus.WARN, isolation.detail, "apt-get install bubblewrap")
    if not isolation.calls_filtered:
        return Check("sandbox", CheckStatus.WARN, isolation.detail, "a kernel with seccomp filters")
    return Check("sandbox", CheckStatus.OK, isolation.detail)


def _address(findings: Findings) -> Check:
    if findings.address_problem is not None:
        return Check(
            "port",
            CheckStatus.WARN,
            f"{findings.address}: {findings.address_problem}",
            "heddle serve --port 0   (takes a free one)",
        )
    return Check("port", CheckStatus.OK, f"{findings.address} is free")


def _sqlite(findings: Findings) -> Check:
    if findings.sqlite_problem is not None:
        return Check(
            "sqlite",
            CheckStatus.FAIL,
            f"{findings.sqlite_version}: {findings.sqlite_problem}",
            "heddle serve --data-dir ON_A_LOCAL_DISK",
        )
    return Check("sqlite", CheckStatus.OK, f"{findings.sqlite_version}, write-ahead log works")


def _data_dir(findings: Findings) -> Check:
    if findings.data_dir_problem is not None:
        return Check(
            "data directory",
            CheckStatus.FAIL,
            f"{findings.data_dir}: {findings.data_dir_problem}",
            "heddle serve --data-dir A_WRITABLE_FOLDER",
        )
    return Check("data directory", CheckStatus.OK, f"{findings.data_dir} is writable")
