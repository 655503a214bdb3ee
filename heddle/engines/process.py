"""Engine processes: their logs, their last words, and their end. For launchers of any kind of engine."""

from __future__ import annotations

import asyncio
import os
import signal
from datetime import UTC, datetime
from pathlib import Path

import structlog

from heddle.signals import signal_name

KILL_GRACE_S = 10.0
"""From SIGKILL to the process being reaped; longer only where the kernel itself hangs (a lost driver)."""
_LOG_TAIL_BYTES = 4096

_log = structlog.get_logger()


def open_log(path: Path, header: str) -> int:
    """A descriptor to append to the log at ``path``, which gets a dated header line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    os.write(fd, f"--- {now} {header}\n".encode())
    return fd


async def end_process(process: asyncio.subprocess.Process, *, grace_s: float) -> None:
    """End ``process`` and the group that it leads, and reap it; idempotent.

    SIGTERM goes to the leader alone, which knows how to end its children; after ``grace_s``, or where it has
    ended by itself, SIGKILL sweeps the group: children may outlive it.
    """
    try:
        if process.returncode is None:
            process.terminate()
            async with asyncio.timeout(grace_s):
                await process.wait()
    except TimeoutError:
        _log.warning("engine.stop_needs_force", pid=process.pid, after_s=grace_s)
    finally:
        _kill_group(process.pid)
    try:
        async with asyncio.timeout(KILL_GRACE_S):
            await process.wait()
    except TimeoutError:
        _log.error("engine.survives_kill", pid=process.pid)


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # nobody is left in it


async def obituary(process: asyncio.subprocess.Process, log_path: Path) -> str:
    """How the process ended: its exit code or signal, and the last line of its log. Waits for the end."""
    code = await process.wait()
    how = f"exited with code {code}" if code >= 0 else f"was killed by {signal_name(-code)}"
    last = await asyncio.to_thread(_last_line, log_path)
    return f"the engine process {how}" + (f"; its last words: {last}" if last else "")


def _last_line(path: Path) -> str:
    """The last line of a log that is not a header; empty where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _LOG_TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    said = [line.strip() for line in lines if line.strip()]
    return "" if not said or said[-1].startswith("--- ") else said[-1]
