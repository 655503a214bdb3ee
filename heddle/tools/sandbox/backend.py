"""The ``python`` tool: model-written code, each run in a sandbox of its own.

Payload: ``{"code": str, "stdin"?: str, "files"?: {relative path: text}}``. Whatever the code does is a
``BackendResult``; only a sandbox that cannot be set up raises ``ToolBackendError``. When a call returns,
raises or is cancelled, the program's whole process tree and its directory are gone.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from heddle.agent.ports import ToolInvocation
from heddle.errors import ToolBackendError
from heddle.signals import signal_name
from heddle.tools.ports import BackendResult, ToolOutcome
from heddle.tools.sandbox.directories import SandboxDirectories, remove_tree
from heddle.tools.sandbox.inside.spec import Ended
from heddle.tools.sandbox.isolation import Isolation
from heddle.tools.sandbox.limits import SandboxLimits
from heddle.tools.sandbox.modes import Interpreter, Launcher, Program, this_interpreter
from heddle.tools.sandbox.process import RunReport, SandboxProcess
from heddle.types import Json

COLD_START_GRACE_S = 5.0
"""How long past its deadline a run may stay: the supervisor counts from the first instruction of the code,
so a start on a crowded machine is not taken from the program's time."""

MEMORY_SUSPICION = 0.9
"""A program killed from outside with this share of its memory limit in use was killed for memory."""


class PayloadError(ValueError):
    """The payload cannot be run; the model reads the message."""


class PythonSandbox:
    """Runs Python programs under ``isolation``, one process tree each."""

    def __init__(
        self,
        *,
        limits: SandboxLimits,
        isolation: Isolation,
        directories: SandboxDirectories,
        interpreter: Interpreter | None = None,
        name: str = "python",
    ) -> None:
        self._name = name
        self._limits = limits
        self._isolation = isolation
        self._directories = directories
        self._launcher = Launcher(isolation.mode, interpreter or this_interpreter(), limits)
        self._running: set[SandboxProcess] = set()
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False

    @property
    def name(self) -> str:
        """What ``ToolInvocation.backend`` calls it."""
        return self._name

    @property
    def repeatable(self) -> bool:
        """A run has a directory of its own, which ends with it."""
        return True

    @property
    def isolation(self) -> Isolation:
        """What holds the programs."""
        return self._isolation

    async def invoke(self, invocation: ToolInvocation, deadline: float) -> BackendResult:
        """Run the program of the payload until ``deadline`` (``time.monotonic()``)."""
        if self._closed:
            raise ToolBackendError(f"tool backend {self._name!r} is closed")
        began = time.monotonic()
        try:
            program = parse_program(invocation.payload, self._limits)
        except PayloadError as exc:
            return BackendResult(str(exc), ToolOutcome.INVALID, 0.0, 0.0)
        process, report = await self._run(program, deadline)
        return self._result(process, report, began, deadline)

    async def _run(self, program: Program, deadline: float) -> tuple[SandboxProcess, RunReport]:
        self._calls += 1
        self._idle.clear()
        directory = None
        try:
            directory = self._directories.new() if self._launcher.needs_directory else None
            return await self._run_in(directory or self._directories.own, program, deadline)
        finally:
            if directory is not None:
                await _remove(directory)
            self._calls -= 1
            if not self._calls:
                self._idle.set()

    async def _run_in(
        self, directory: Path, program: Program, deadline: float
    ) -> tuple[SandboxProcess, RunReport]:
        launched = self._launcher.start(program, directory, max(0.01, deadline - time.monotonic()))
        process = SandboxProcess(launched, self._limits.output_bytes)
        self._running.add(process)
        try:
            report = await process.wait(deadline + COLD_START_GRACE_S)
        except asyncio.CancelledError:
            await process.end()
            raise
        finally:
            self._running.discard(process)
        if report.fault is not None:
            raise ToolBackendError(f"sandbox ({self._isolation.mode}) failed: {report.fault}")
        if report.started is None and process.ended_by == "itself":
            words = process.output.text().strip() or "it said nothing"
            raise ToolBackendError(f"sandbox ({self._isolation.mode}) did not start: {words}")
        if process.ended_by == "coordinator":
            raise ToolBackendError(f"tool backend {self._name!r} was closed during the call")
        return process, report

    def _result(
        self, process: SandboxProcess, report: RunReport, began: float, deadline: float
    ) -> BackendResult:
        now = time.monotonic()
        started = now if report.started is None else min(max(report.started, began), now)
        outcome, note = self._verdict(process, report.ended, deadline - began)
        output = process.output.text()
        if note:
            output = f"{output}\n[{note}]" if output and not output.endswith("\n") else f"{output}[{note}]"
        extra: dict[str, Json] = {"isolation": self._isolation.mode}
        if process.output.omitted_bytes:
            extra["output_truncated"] = True
        if report.ended is not None:
            extra["exit_code"] = report.ended["exit_code"]
            extra["signal"] = report.ended["signal"]
            extra["cpu_s"] = report.ended["cpu_s"]
            extra["max_rss_bytes"] = report.ended["max_rss_bytes"]
            if report.ended["survivors"]:
                extra["survivors"] = report.ended["survivors"]
        return BackendResult(output, outcome, started - began, now - started, extra)

    def _verdict(
        self, process: SandboxProcess, ended: Ended | None, limit_s: float
    ) -> tuple[ToolOutcome, str]:
        """The outcome, and what the model should know beyond the program's own output."""
        limits = self._limits
        if process.output.flooded:
            return ToolOutcome.OUTPUT_EXCEEDED, "ended: too much output"
        if process.ended_by == "deadline" or (ended is not None and ended["cause"] == "wall"):
            return ToolOutcome.TIMED_OUT, f"ended: time limit of {limit_s:.3g} s"
        if ended is None:
            return ToolOutcome.KILLED, "ended: the sandbox was killed"
        if ended["out_of_memory"]:
            return ToolOutcome.MEMORY_EXCEEDED, f"memory limit of {limits.memory_bytes >> 20} MiB"
        if ended["signal"] == 0:
            return (ToolOutcome.OK, "") if ended["exit_code"] == 0 else (ToolOutcome.ERROR, "")
        if ended["signal"] == signal.SIGXCPU or ended["cpu_s"] >= limits.cpu_s:
            return ToolOutcome.TIMED_OUT, f"ended: processor time limit of {limits.cpu_s:g} s"
        if ended["signal"] == signal.SIGKILL and (
            ended["max_rss_bytes"] >= MEMORY_SUSPICION * limits.memory_bytes
        ):
            return ToolOutcome.MEMORY_EXCEEDED, f"ended: memory limit of {limits.memory_bytes >> 20} MiB"
        return ToolOutcome.KILLED, f"ended by {signal_name(ended['signal'])}"

    async def prewarm(self, n: int) -> None:
        """Run ``n`` empty programs, so that the interpreter's files are in the page cache."""
        empty = Program("", "", {})
        for _ in range(n):
            await self._run(empty, time.monotonic() + COLD_START_GRACE_S)

    async def close(self) -> None:
        """End every program and remove this process's directory."""
        self._closed = True
        running = list(self._running)
        if running:
            await asyncio.gather(*(process.end() for process in running))
        try:
            async with asyncio.timeout(COLD_START_GRACE_S):
                await self._idle.wait()  # each call clears its own directory away first
        except TimeoutError as exc:
            raise ToolBackendError(f"tool backend {self._name!r} still clears away") from exc
        self._directories.close()


async def _remove(directory: Path) -> None:
    """In a thread, and to the end even if the caller is cancelled: nothing may stay behind."""
    removal = asyncio.create_task(asyncio.to_thread(remove_tree, directory))
    try:
        await asyncio.shield(removal)
    except asyncio.CancelledError:
        await removal
        raise


def parse_program(payload: Mapping[str, Json], limits: SandboxLimits) -> Program:
    """Check a payload. Raises ``PayloadError`` with a message for the model."""
    if unknown := set(payload) - {"code", "stdin", "files"}:
        raise PayloadError(f"unknown argument {min(unknown)!r}; expected code, stdin, files")
    code, stdin, files = payload.get("code"), payload.get("stdin") or "", payload.get("files") or {}
    if not isinstance(code, str) or "\0" in code:
        raise PayloadError("code must be a string without NUL characters")
    if not isinstance(stdin, str):
        raise PayloadError("stdin must be a string")
    if not isinstance(files, dict):
        raise PayloadError("files must map names to texts")
    texts: dict[str, str] = {}
    for name, text in files.items():
        if not isinstance(text, str):
            raise PayloadError(f"files[{name!r}] must be a string")
        texts[_checked_path(name)] = text
    for text in (code, stdin, *texts.values()):
        if _encoded_size(text) > limits.file_bytes:
            raise PayloadError(f"code, stdin and each file may have {limits.file_bytes} bytes at most")
    return Program(code, stdin, texts)


def _checked_path(name: str) -> str:
    """A relative path that stays inside the working directory, whatever is there."""
    path = PurePosixPath(name)
    if not name or "\0" in name or "\\" in name or path.is_absolute() or ".." in path.parts or not path.parts:
        raise PayloadError(f"file name {name!r} must be a relative path inside the working directory")
    return str(path)


def _encoded_size(text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError as exc:
        raise PayloadError(f"text that is not valid Unicode: {exc.reason}") from exc
