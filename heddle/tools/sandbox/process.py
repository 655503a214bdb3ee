"""One supervisor process as the coordinator sees it: started, read from, let go, gone.

``launch`` starts it and blocks for about a millisecond; ``SandboxProcess`` follows it on the event loop.
Ending one is closing its lifeline, whereupon the supervisor ends everything below it; one that does not
follow in time is killed, which in the modes with a pid namespace ends everything below it as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import marshal
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import orjson

from heddle.errors import ToolBackendError
from heddle.tools.sandbox.inside import main as supervisor
from heddle.tools.sandbox.inside.spec import Ended, Spec
from heddle.tools.sandbox.output import OutputBuffer

STOP_GRACE_S = 4.0
"""From closing the lifeline to SIGKILL; longer than a supervisor in the rlimits mode keeps killing."""

READ_BYTES = 64 * 1024

MARSHAL_VERSION = 2
"""The oldest format that every interpreter reads, as the sandbox's may be another version."""

ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}
"""All that a program sees of an environment, besides HOME and TMPDIR."""


@dataclass(frozen=True, slots=True)
class Launched:
    """A running supervisor and this side's ends of its descriptors, which whoever holds it must close."""

    popen: subprocess.Popen[bytes]
    pidfd: int
    output_fd: int
    report_fd: int
    lifeline_fd: int
    info_fd: int
    """Where a wrapper says which process is the first of its pid namespace; empty without a wrapper."""

    def close(self) -> None:
        """Close everything but the lifeline, which ends earlier."""
        for fd in (self.pidfd, self.output_fd, self.report_fd, self.info_fd):
            os.close(fd)


@dataclass(frozen=True, slots=True)
class RunReport:
    """What a supervisor said. ``started`` is None where it never came to run the program."""

    started: float | None
    ended: Ended | None
    fault: str | None


def supervisor_command(interpreter: Path) -> list[str]:
    """The interpreter running ``inside.main``, without site-packages and without writing bytecode."""
    home = str(Path(supervisor.__file__).parents[1])
    bootstrap = (
        f"import sys; sys.path.insert(0, {home!r}); from inside.main import main; "
        f"sys.path.remove({home!r}); main()"
    )
    return [str(interpreter), "-I", "-S", "-B", "-X", "utf8", "-c", bootstrap]


def launch(
    wrapper: Callable[[int], Sequence[str]], interpreter: Path, spec: Spec, home: str, temporary: str
) -> Launched:
    """Start a supervisor. ``wrapper`` gives the words to put before its command, and gets the descriptor
    for bubblewrap's ``--info-fd``. Raises ``ToolBackendError``."""
    opened: list[int] = []
    popen: subprocess.Popen[bytes] | None = None
    try:
        spec_fd = os.memfd_create("spec")
        opened.append(spec_fd)
        _write_all(spec_fd, marshal.dumps(cast("dict[str, Any]", spec), MARSHAL_VERSION))
        os.lseek(spec_fd, 0, os.SEEK_SET)
        for _ in range(4):
            opened += os.pipe()
        output_r, output_w, report_r, report_w, lifeline_r, lifeline_w, info_r, info_w = opened[1:]
        command = [*wrapper(info_w), *supervisor_command(interpreter)]
        popen = subprocess.Popen(
            [*command, str(spec_fd), str(lifeline_r), str(report_w)],
            stdin=subprocess.DEVNULL,
            stdout=output_w,
            stderr=output_w,
            pass_fds=(spec_fd, lifeline_r, report_w, info_w),
            env={**ENVIRONMENT, "HOME": home, "TMPDIR": temporary},
            cwd="/",
            start_new_session=True,
        )
        pidfd = os.pidfd_open(popen.pid)
    except (OSError, ValueError) as exc:
        if popen is not None:
            popen.kill()
            popen.wait()
        for fd in opened:
            os.close(fd)
        raise ToolBackendError(f"cannot start a sandbox: {exc}") from exc
    for fd in (spec_fd, output_w, report_w, lifeline_r, info_w):
        os.close(fd)
    return Launched(popen, pidfd, output_r, report_r, lifeline_w, info_r)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def read_report(fd: int) -> RunReport:
    """Parse the report of a supervisor that has ended; a torn last line counts as unsaid."""
    os.set_blocking(fd, False)
    data = b""
    try:
        while chunk := os.read(fd, READ_BYTES):
            data += chunk
    except BlockingIOError:
        pass
    started: float | None = None
    ended: Ended | None = None
    fault: str | None = None
    for line in data.decode("utf-8", "replace").split("\n")[:-1]:
        word, _, rest = line.partition(" ")
        if word == "started":
            started = float(rest)
        elif word == "ended":
            ended = _parse_ended(dict(pair.split("=") for pair in rest.split()))
        else:
            fault = rest
    return RunReport(started, ended, fault)


def _parse_ended(words: Mapping[str, str]) -> Ended:
    return {
        "cause": cast("Literal['exited', 'wall', 'stopped']", words["cause"]),
        "exit_code": int(words["exit_code"]),
        "signal": int(words["signal"]),
        "out_of_memory": words["out_of_memory"] == "True",
        "cpu_s": float(words["cpu_s"]),
        "max_rss_bytes": int(words["max_rss_bytes"]),
        "survivors": int(words["survivors"]),
    }


class SandboxProcess:
    """Follows a launched supervisor to its end; owns the descriptors."""

    def __init__(self, launched: Launched, output_limit_bytes: int) -> None:
        self._launched = launched
        self._loop = asyncio.get_running_loop()
        self._gone: asyncio.Future[RunReport] = self._loop.create_future()
        self._lifeline_open = True
        self.output = OutputBuffer(output_limit_bytes)
        self.ended_by: Literal["itself", "deadline", "flood", "coordinator"] = "itself"
        os.set_blocking(launched.output_fd, False)
        self._first_pidfd: int | None = None
        self._info = b""
        self._loop.add_reader(launched.output_fd, self._on_output)
        self._loop.add_reader(launched.info_fd, self._on_info)
        self._loop.add_reader(launched.pidfd, self._on_exit)

    async def wait(self, deadline: float) -> RunReport:
        """Until it has ended by itself, by a flood, or at ``deadline`` (``time.monotonic()``)."""
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                return await asyncio.shield(self._gone)
        except TimeoutError:
            return await self.end("deadline")

    async def end(self, reason: Literal["deadline", "coordinator"] = "coordinator") -> RunReport:
        """End the whole tree; returns when it is gone. Cancelled meanwhile, it kills at once."""
        if not self._gone.done():
            self.ended_by = reason
        self._let_go()
        try:
            async with asyncio.timeout(STOP_GRACE_S):
                return await asyncio.shield(self._gone)
        except TimeoutError:
            self.kill()
            return await asyncio.shield(self._gone)
        except asyncio.CancelledError:
            self.kill()
            raise

    def kill(self) -> None:
        """SIGKILL to the supervisor, without waiting."""
        self._let_go()
        if not self._gone.done():
            self._launched.popen.kill()

    def _let_go(self) -> None:
        if self._lifeline_open:
            self._lifeline_open = False
            os.close(self._launched.lifeline_fd)

    def _on_output(self) -> None:
        if not self._read_output_once():
            self._loop.remove_reader(self._launched.output_fd)

    def _read_output_once(self) -> bool:
        """Whether there may be more."""
        try:
            chunk = os.read(self._launched.output_fd, min(READ_BYTES, self.output.room))
        except BlockingIOError:
            return True
        self.output.add(chunk)
        if self.output.flooded and self.ended_by == "itself":
            self.ended_by = "flood"
            self._let_go()
        return bool(chunk) and not self.output.flooded

    def _on_info(self) -> None:
        """bubblewrap tells who is process 1. It leaves before that one does: hold on to it."""
        chunk = os.read(self._launched.info_fd, READ_BYTES)
        self._info += chunk
        if b"}" in self._info:
            with contextlib.suppress(ProcessLookupError):
                self._first_pidfd = os.pidfd_open(orjson.loads(self._info)["child-pid"])
        elif chunk:
            return  # it writes in pieces
        self._loop.remove_reader(self._launched.info_fd)

    def _on_exit(self) -> None:
        """The process that we started has ended; whoever is process 1 of its namespace is ending."""
        self._launched.popen.wait()  # immediate: the pidfd says so
        self._loop.remove_reader(self._launched.pidfd)
        self._let_go()
        if self._first_pidfd is None:
            self._finish()
        else:
            self._loop.add_reader(self._first_pidfd, self._finish)

    def _finish(self) -> None:
        for fd in (self._launched.output_fd, self._launched.info_fd, self._first_pidfd):
            if fd is not None:
                self._loop.remove_reader(fd)
        self._drain_output()
        report = read_report(self._launched.report_fd)
        self._launched.close()
        if self._first_pidfd is not None:
            os.close(self._first_pidfd)
        self._gone.set_result(report)

    def _drain_output(self) -> None:
        """What is still in the pipe; not until its end, which a survivor could keep from coming."""
        while not self.output.flooded:
            try:
                chunk = os.read(self._launched.output_fd, min(READ_BYTES, self.output.room))
            except BlockingIOError:
                return
            if not chunk:
                return
            self.output.add(chunk)
