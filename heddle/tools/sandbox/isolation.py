"""Which isolation this machine can give, found out by trying it.

Each mode is probed by running a program in it that tries to reach a listening socket and a readable file
of this process, to see its processes, and to make a system call that should be filtered: what ``Isolation``
says is what that program saw.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import orjson

from heddle.errors import ConfigError, ToolBackendError
from heddle.tools.sandbox.inside.spec import Mode
from heddle.tools.sandbox.limits import SandboxLimits
from heddle.tools.sandbox.modes import MODES, Interpreter, Launcher, Program, this_interpreter
from heddle.tools.sandbox.process import Launched, read_report

PROBE_TIMEOUT_S = 15.0
"""A probe takes a tenth of a second; this is for a machine that is starved."""

_PROBE = """
import ctypes, json, os, socket, sys
port, secret, pid = json.loads(sys.stdin.read())
def reached(action):
    try:
        action()
    except OSError:
        return False
    return True
child = os.fork()
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
with open("scratch", "w") as file:
    file.write("writable")
pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
print(json.dumps({
    "network": reached(lambda: socket.create_connection(("127.0.0.1", port), 2).close()),
    "files": reached(lambda: open(secret).close()),
    "pids": pid in pids and max(pids) > 8,
    "calls": ctypes.CDLL(None).unshare(0) == 0,
}))
"""


@dataclass(frozen=True, slots=True)
class Isolation:
    """What is in force. ``detail`` is a sentence for people: start-up log and ``heddle doctor``."""

    mode: Mode
    network_isolated: bool
    filesystem_isolated: bool
    pids_isolated: bool
    detail: str
    calls_filtered: bool = True
    """Whether the kernel keeps programs from system calls that no tool needs."""

    @property
    def complete(self) -> bool:
        """Whether nothing of the host's network, files and processes can be reached."""
        return self.network_isolated and self.filesystem_isolated and self.pids_isolated


def detect_isolation(requested: str = "auto", interpreter: Interpreter | None = None) -> Isolation:
    """Probe ``requested`` (a mode, or ``auto`` for the strongest that works). Blocks for 0.1 to 1 s.

    Raises ``ConfigError`` where the mode is unknown, where it does not work here, or where none does.
    """
    if sys.platform != "linux":
        raise ConfigError("the sandbox needs Linux (namespaces, resource limits, pidfds)")
    modes = MODES if requested == "auto" else tuple(mode for mode in MODES if mode == requested)
    if not modes:
        raise ConfigError(f"unknown isolation {requested!r} (choose from auto, {', '.join(MODES)})")
    failures: list[str] = []
    for mode in modes:
        try:
            seen = _probe(mode, interpreter or this_interpreter())
        except ToolBackendError as exc:
            failures.append(f"{mode}: {exc}")
            continue
        return _isolation(mode, seen, failures)
    raise ConfigError("no working sandbox; " + "; ".join(failures))


def _isolation(mode: Mode, reached: Mapping[str, bool], failures: list[str]) -> Isolation:
    open_to = [what for what, key in (("network", "network"), ("files", "files")) if reached[key]]
    if reached["pids"]:
        open_to.append("process list")
    if open_to:
        detail = (
            f"Sandbox: {mode}. WARNING: model-written code can reach this machine's {', '.join(open_to)}; "
            "only resource limits hold. Install bubblewrap or allow user namespaces."
        )
    else:
        detail = f"Sandbox: {mode}. No network, no host files, no host processes; resource limits hold."
    if reached["calls"]:
        detail += " No system call is filtered: this kernel or machine has no filters for it."
    if failures:
        detail += f" (not available: {'; '.join(failures)})"
    return Isolation(
        mode,
        network_isolated=not reached["network"],
        filesystem_isolated=not reached["files"],
        pids_isolated=not reached["pids"],
        detail=detail,
        calls_filtered=not reached["calls"],
    )


def _probe(mode: Mode, interpreter: Interpreter) -> dict[str, bool]:
    """What a program in this mode can reach. Raises ``ToolBackendError`` where it cannot run."""
    with tempfile.TemporaryDirectory(prefix="heddle-probe-") as base, socket.socket() as listener:
        os.chmod(base, 0o755)  # the probe must be able to find the secret if anyone can
        secret = Path(base, "secret")
        secret.write_text("secret")
        secret.chmod(0o644)
        directory = Path(base, "run")
        directory.mkdir(mode=0o700)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        question = orjson.dumps([listener.getsockname()[1], str(secret), os.getpid()]).decode()
        launcher = Launcher(mode, interpreter, SandboxLimits())
        program = Program(_PROBE, question, {})
        return _answer(launcher.start(program, directory, PROBE_TIMEOUT_S))


def _answer(launched: Launched) -> dict[str, bool]:
    try:
        try:
            launched.popen.wait(PROBE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise ToolBackendError("the probe did not end in time") from None
        finally:
            os.close(launched.lifeline_fd)
            launched.popen.kill()
            launched.popen.wait()
        report = read_report(launched.report_fd)
        os.set_blocking(launched.output_fd, False)
        try:
            output = os.read(launched.output_fd, 65536)
        except BlockingIOError:
            output = b""
    finally:
        launched.close()
    if report.fault is not None:
        raise ToolBackendError(report.fault)
    if report.ended is None or report.ended["exit_code"] != 0:
        words = output.decode("utf-8", "replace").strip().splitlines() or ["it said nothing"]
        raise ToolBackendError(f"the probe failed: {words[-1]}")
    answer: dict[str, bool] = orjson.loads(output)
    return answer
