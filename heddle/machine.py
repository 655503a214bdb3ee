"""What is on this machine, for ``heddle doctor``. Starts no engine, brings no model, leaves no file."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

from heddle.config import HeddleConfig
from heddle.doctor import Findings, IsolationFinding, ModelFinding, SGLangFinding
from heddle.engine_kits.sglang import device_order, server_template, tokenizer_directory
from heddle.engines.embedded.launcher import usable_cores
from heddle.engines.embedded.model import PACKAGED_MODELS, find_model
from heddle.errors import ConfigError
from heddle.tools.sandbox import detect_isolation

NVIDIA_SMI_TIMEOUT_S = 10.0
SGLANG_VERSION_TIMEOUT_S = 30.0
"""Python starts and reads the package's metadata; SGLang itself is not imported."""


def examine(config: HeddleConfig) -> Findings:
    """Look at this machine, with the eyes of this configuration."""
    data_dir = config.data_dir.resolve()
    folder = _nearest_existing(data_dir)
    writable_problem = _write_problem(folder)
    return Findings(
        python=sys.version_info[:3],
        system=f"{platform.system()} {platform.release()}, {platform.machine()}",
        cores=usable_cores(),
        memory_bytes=psutil.virtual_memory().available,
        disk_free_bytes=shutil.disk_usage(folder).free,
        gpus=_nvidia_gpus(),
        engine_kind=config.engine.kind,
        engine_version=_package_version("xllamacpp"),
        model=_find_model(config.engine.model),
        isolation=_find_isolation(config.tools.isolation),
        address=f"{config.server.host}:{config.server.port}",
        address_problem=_bind_problem(config.server.host, config.server.port),
        sqlite_version=sqlite3.sqlite_version,
        sqlite_problem=None if writable_problem else _wal_problem(folder),
        data_dir=data_dir,
        data_dir_problem=writable_problem,
        sglang=_find_sglang(config) if config.engine.kind == "sglang" else None,
    )


def _package_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _find_model(name: str) -> ModelFinding:
    path = find_model(name)
    packaged = PACKAGED_MODELS.get(name)
    if path is None or packaged is None:
        return ModelFinding(name, path, None, can_be_brought=packaged is not None)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return ModelFinding(name, path, None if digest == packaged.sha256 else f"wrong sum (sha256 {digest})")


def _find_isolation(requested: str) -> IsolationFinding:
    try:
        isolation = detect_isolation(requested)
    except ConfigError as exc:
        return IsolationFinding(detail="", complete=False, problem=str(exc))
    return IsolationFinding(isolation.detail, isolation.complete, calls_filtered=isolation.calls_filtered)


def _nvidia_gpus() -> tuple[str, ...]:
    command = shutil.which("nvidia-smi")
    if command is None:
        return ()
    try:
        listed = subprocess.run(
            [command, "--query-gpu=name,memory.total", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=NVIDIA_SMI_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(line.strip() for line in listed.stdout.splitlines() if line.strip())


def _find_sglang(config: HeddleConfig) -> SGLangFinding:
    sglang = config.engine.sglang
    if sglang.workers:
        return SGLangFinding(attached=sglang.workers)
    devices, device_problem = 0, None
    try:
        devices = len(device_order(sglang))
    except ConfigError as exc:
        device_problem = str(exc)
    tokenizer_problem = None
    try:
        tokenizer_directory(config.engine, server_template(config).model)
    except ConfigError as exc:
        tokenizer_problem = str(exc)
    return SGLangFinding(
        command=" ".join(sglang.command),
        version=_sglang_version(sglang.command),
        devices=devices,
        device_problem=device_problem,
        tokenizer_problem=tokenizer_problem,
    )


def _sglang_version(command: tuple[str, ...]) -> str | None:
    """Of the package that belongs to the command's Python, or to the script ``sglang`` beside one."""
    program = shutil.which(command[0])
    if program is None:
        return None
    python = program if command[1:2] == ("-m",) else str(Path(program).resolve().with_name("python"))
    script = "import importlib.metadata; print(importlib.metadata.version('sglang'))"
    try:
        asked = subprocess.run(
            [python, "-P", "-c", script],
            capture_output=True,
            text=True,
            timeout=SGLANG_VERSION_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return asked.stdout.strip()


def _nearest_existing(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _write_problem(folder: Path) -> str | None:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as exc:
        return f"cannot be written: {exc.strerror}"


def _wal_problem(folder: Path) -> str | None:
    with tempfile.TemporaryDirectory(dir=folder, prefix=".heddle-doctor-") as scratch:
        connection = sqlite3.connect(Path(scratch) / "probe.sqlite")
        try:
            (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
        except sqlite3.Error as exc:
            return f"no write-ahead log in {folder}: {exc}"
        finally:
            connection.close()
    return None if mode == "wal" else f"no write-ahead log in {folder} (journal mode {mode})"


def _bind_problem(host: str, port: int) -> str | None:
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as exc:
        return exc.strerror or str(exc)
    return None
