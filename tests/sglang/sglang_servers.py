"""Servers for the tests: real SGLang on the CPU, and the mock, each as a process of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[2]
INSTALL_TIMEOUT_S = 900.0
READY_TIMEOUT_S = 300.0

SLOTS = 2
KV_TOKENS = 8192
VOCABULARY = 1024
"""Of the tiny model."""

ARGUMENTS = (
    *("--max-total-tokens", str(KV_TOKENS), "--max-running-requests", str(SLOTS)),
    *("--chunked-prefill-size", "256", "--weight-version", "0"),
    *("--enable-priority-scheduling", "--priority-scheduling-preemption-threshold", "0"),
    *("--default-priority-value", "0", "--enable-session-radix-cache"),
    *("--incremental-streaming-output", "--enable-metrics"),
)
"""What both kinds of server are started with."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of server that can be started any number of times."""

    name: str
    command: tuple[str, ...]
    """Up to the port."""
    model: Path
    other: Path
    """Weights of the same shape that say other things."""

    def start(
        self, log: Path, arguments: Sequence[str] = ARGUMENTS, environment: Mapping[str, str] | None = None
    ) -> Server:
        """Returns when it is ready. ``environment`` is set over our own."""
        server = self.launch(log, arguments, environment)
        try:
            server.wait_ready()
        except BaseException:
            server.kill()
            raise
        return server

    def launch(
        self, log: Path, arguments: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> Server:
        """Returns at once."""
        port = free_port()
        more = () if self.name == "mock" else ("--skip-tokenizer-init",)
        command = (*self.command, str(port), "--model-path", str(self.model), *more, *arguments)
        with log.open("wb") as file:
            process = subprocess.Popen(
                command,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=log.parent,
                env={**os.environ, **(environment or {})},
            )
        return Server(self, process, f"http://127.0.0.1:{port}", log)


@dataclass(frozen=True, slots=True)
class Server:
    """One that runs."""

    kind: Kind
    process: subprocess.Popen[bytes]
    url: str
    log: Path

    def wait_ready(self) -> None:
        """Until ``/ready`` says so."""
        give_up_at = time.monotonic() + READY_TIMEOUT_S
        with httpx.Client(trust_env=False) as client:
            while True:
                assert self.process.poll() is None, f"{self.kind.name} ended: {self.log_tail()}"
                assert time.monotonic() < give_up_at, f"{self.kind.name} is not ready: {self.log_tail()}"
                try:
                    if client.get(f"{self.url}/ready", timeout=5.0).status_code == 200:
                        return
                except httpx.HTTPError:
                    time.sleep(0.2)  # it does not listen yet

    def terminate(self) -> None:
        """Ask it to end, as an operator does."""
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it and all its processes at once."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        finally:
            self.process.wait()

    def log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-1500:]


def free_port() -> int:
    """One that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def mock_kind(directory: Path) -> Kind:
    """The mock at the pace of the tiny model."""
    for name in ("tiny", "other"):
        (directory / name).mkdir(exist_ok=True)
    pace = ("--decode-ms", "2", "--prefill-us-per-token", "100")
    command = (sys.executable, "-m", "heddle.testing.mock_sglang", *pace, "--port")
    return Kind("mock", command, directory / "tiny", directory / "other")


def real_kind() -> Kind:
    """Real SGLang, installed on first use. Skips, saying why, where it cannot be."""
    installer = ROOT / "scripts" / "sglang-cpu"
    try:
        done = subprocess.run([installer], capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        _skip(f"the installation took longer than {INSTALL_TIMEOUT_S:g} s")
    if done.returncode != 0:
        _skip(done.stderr.strip().rpartition("\n")[2])
    home = Path(done.stdout.strip())
    return Kind("real", (str(home / "serve"),), home / "model" / "tiny", home / "model" / "other")


def _skip(reason: str) -> NoReturn:
    pytest.skip(f"REAL SGLANG NOT TESTED, it cannot be installed here: {reason}")
