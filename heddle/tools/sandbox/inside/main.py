"""The supervisor: reads its order, builds the sandbox, runs the program in it, ends everything.

Three descriptors come as arguments: the *spec* (a file holding the order, marshalled: importing ``json``
would double the cold start), the *lifeline* (a pipe that nobody writes to: its end means that the
coordinator let go or died) and the *report* (text lines back, see ``spec``). Standard output and error are
the program's.

    bubblewrap   coordinator - bwrap [ supervisor - program ]
    namespaces   coordinator - gate - [ supervisor (process 1) - program ]
    rlimits      coordinator - supervisor (subreaper) - program

In brackets: a pid namespace, whose processes the kernel ends together with its process 1.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import select
import signal
import sys
import time

from . import namespaces, program
from . import syscalls as sc
from .tree import end_descendants, processes_of_user

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from .spec import Ended, Spec

FAULT_EXIT_CODE = 70


class Supervisor:
    """One run, from the order to the report."""

    def __init__(self, spec: Spec, *, lifeline_fd: int, report_fd: int) -> None:
        self._spec = spec
        self._lifeline_fd = lifeline_fd
        self._report_fd = report_fd
        self._own_bytes = program.address_space_bytes()

    def run(self) -> int:
        """Returns the exit code of this process; what happened to the program is in the report."""
        if self._spec["mode"] == "namespaces":
            sc.die_with_parent(signal.SIGKILL)
            if os.getppid() != self._spec["coordinator_pid"]:
                return FAULT_EXIT_CODE  # it died before we could ask to die with it
            namespaces.leave_the_host()
            first = os.fork()
            if first:
                return os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
            sc.die_with_parent(signal.SIGKILL)
            namespaces.build_root(self._spec)
        else:
            os.chdir(self._spec["directory"])
        if self._spec["mode"] == "rlimits":
            sc.become_subreaper()
            self._own_the_directory()
        return self._supervise()

    def _own_the_directory(self) -> None:
        if os.geteuid() == 0:
            os.chown(".", self._spec["uid"], self._spec["uid"])

    def _supervise(self) -> int:
        wake_r, wake_w = os.pipe()
        os.set_blocking(wake_w, False)
        os.set_blocking(wake_r, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(wake_w)
        verdict_r, verdict_w = os.pipe()
        process_limit = self._process_limit()
        if self._spec["mode"] != "rlimits":
            sc.set_dumpable(False)
        self._report(f"started {time.monotonic()}")
        child = os.fork()
        if child == 0:
            self._be_the_program(verdict_w, process_limit)
        os.close(verdict_w)
        ended = self._watch(child, wake_r)
        if self._spec["mode"] == "rlimits":
            ended["survivors"] = end_descendants(self._spec["uid"])
        os.set_blocking(verdict_r, False)
        with contextlib.suppress(BlockingIOError):  # a descendant holds the other end, nothing was said
            ended["out_of_memory"] = os.read(verdict_r, 1) == program.OUT_OF_MEMORY
        self._report("ended " + " ".join(f"{key}={value}" for key, value in ended.items()))
        return 0

    def _process_limit(self) -> int:
        """RLIMIT_NPROC counts every process of the user, so add those that are not the program's."""
        if os.geteuid() == 0:
            return self._spec["max_processes"]
        if self._spec["mode"] != "rlimits":  # a user namespace of its own: process 1 and one more
            return self._spec["max_processes"] + 2
        return self._spec["max_processes"] + processes_of_user(os.getuid())

    def _be_the_program(self, verdict_fd: int, process_limit: int) -> NoReturn:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        library = program.hold_library() if self._spec["mode"] == "rlimits" else {}
        program.confine(self._spec, address_space=self._own_bytes, process_limit=process_limit)
        keep = {verdict_fd, *program.reach_library(library)}
        start = 3
        for fd in sorted(keep):
            os.closerange(start, fd)
            start = fd + 1
        os.closerange(start, 65536)
        raise SystemExit(program.run(self._spec, verdict_fd))

    def _watch(self, child: int, wake_fd: int) -> Ended:
        """Wait for the program, the wall clock or the end of the lifeline; reap orphans meanwhile."""
        poller = select.poll()
        poller.register(self._lifeline_fd, select.POLLIN)
        poller.register(wake_fd, select.POLLIN)
        deadline = time.monotonic() + self._spec["wall_s"]
        ended: Ended = {
            "cause": "exited",
            "exit_code": -1,
            "signal": 0,
            "out_of_memory": False,
            "cpu_s": 0.0,
            "max_rss_bytes": 0,
            "survivors": 0,
        }
        while not _reap(child, ended):
            left_s = deadline - time.monotonic()
            ready = [fd for fd, _ in poller.poll(max(0.0, left_s) * 1000)]
            if self._lifeline_fd in ready:
                ended["cause"] = "stopped"
                return ended
            if wake_fd in ready:
                os.read(wake_fd, 4096)
            elif left_s <= 0:
                ended["cause"] = "wall"
                return ended
        return ended

    def _report(self, line: str) -> None:
        os.write(self._report_fd, line.encode() + b"\n")


def _reap(child: int, ended: Ended) -> bool:
    """Collect whoever ended; true once ``child`` is among them, its end written to ``ended``."""
    while True:
        try:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return True
        if pid == 0:
            return False
        if pid == child:
            ended["cpu_s"] = usage.ru_utime + usage.ru_stime
            ended["max_rss_bytes"] = usage.ru_maxrss * 1024
            code = os.waitstatus_to_exitcode(status)
            if code < 0:
                ended["signal"] = -code
            else:
                ended["exit_code"] = code
            return True


def main() -> NoReturn:
    """Entry point of the supervisor process: ``main SPEC_FD LIFELINE_FD REPORT_FD``."""
    spec_fd, lifeline_fd, report_fd = (int(argument) for argument in sys.argv[1:4])
    try:
        with open(spec_fd, "rb") as file:
            spec: Spec = marshal.load(file)
        code = Supervisor(spec, lifeline_fd=lifeline_fd, report_fd=report_fd).run()
    except Exception as exc:  # the boundary: the coordinator raises it as a ToolBackendError
        words = f"{type(exc).__name__}: {exc}".replace("\n", " ")
        os.write(report_fd, f"fault {words}\n".encode())
        code = FAULT_EXIT_CODE
    os._exit(code)  # nothing to flush or finalise, and the caller waits
