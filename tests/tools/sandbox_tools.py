"""Builders and observers for the tests of the sandbox."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from functools import cache
from itertools import count
from pathlib import Path

from heddle.agent.ports import ToolInvocation
from heddle.errors import ConfigError
from heddle.tools.ports import BackendResult
from heddle.tools.sandbox import (
    Isolation,
    PythonSandbox,
    SandboxDirectories,
    SandboxLimits,
    detect_isolation,
)
from heddle.tools.sandbox.modes import MODES
from heddle.types import Json, TrajectoryId

LIMITS = SandboxLimits(
    cpu_s=20,
    memory_bytes=128 << 20,
    output_bytes=2000,
    file_bytes=1 << 20,
    disk_bytes=4 << 20,
    max_processes=16,
)

LONG_S = 60.0
"""A limit that no passing test reaches."""

_names = count()


@cache
def available_modes() -> tuple[str, ...]:
    """The modes that work on this machine; the last resort always does."""
    return tuple(mode for mode in MODES if _works(mode))


def _works(mode: str) -> bool:
    try:
        detect_isolation(mode)
    except ConfigError:
        return False
    return True


def make_invocation(
    code: str = "",
    *,
    stdin: str = "",
    files: dict[str, str] | None = None,
    trajectory: str = "b-g0-t0",
    backend: str = "python",
    timeout_s: float | None = None,
) -> ToolInvocation:
    """An invocation of the ``python`` tool."""
    payload: dict[str, Json] = {"code": code, "stdin": stdin, "files": dict(files or {})}
    return ToolInvocation("call-0", TrajectoryId(trajectory), backend, "python", payload, timeout_s)


def process_ids_with(text: str) -> list[int]:
    """Processes of this machine whose name (as set by the program) contains ``text``."""
    found = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        try:
            if text in path.read_text():
                found.append(int(path.parent.name))
        except OSError:  # ended while we looked
            continue
    return found


def unique_name() -> str:
    """At most 15 characters, which is all that a process name keeps."""
    return f"hx{os.getpid() % 1_000_000}-{next(_names)}-"


def make_sandbox(isolation: Isolation, root: Path, limits: SandboxLimits = LIMITS) -> PythonSandbox:
    """A ``python`` backend whose directories lie below ``root``."""
    return PythonSandbox(limits=limits, isolation=isolation, directories=SandboxDirectories(root))


async def run(
    sandbox: PythonSandbox,
    code: str,
    *,
    timeout_s: float = LONG_S,
    stdin: str = "",
    files: dict[str, str] | None = None,
) -> BackendResult:
    """Run ``code`` in the sandbox, without a manager."""
    invocation = make_invocation(code, stdin=stdin, files=files)
    return await sandbox.invoke(invocation, time.monotonic() + timeout_s)


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait until ``condition`` holds; fails after ``LONG_S``."""
    async with asyncio.timeout(LONG_S):
        while not condition():
            await asyncio.sleep(0.01)  # another process's doing: there is no event to wait for
