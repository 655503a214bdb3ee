"""Finding and ending processes without a pid namespace: the ``rlimits`` mode.

The supervisor is a subreaper, so every process that the program started, however it detached itself, is a
descendant of the supervisor. As root the program has a user of its own, and one kill reaches all of that
user's processes at once. Otherwise the tree is walked again and again until nothing is left, which a
program that forks faster than it is walked can escape for as long as ``END_TIMEOUT_S``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

END_TIMEOUT_S = 3.0
"""How long to keep killing before the survivors are reported instead."""


def end_descendants(uid: int) -> int:
    """Kill and reap everything below this process; ``uid`` is the program's where this is root.

    Returns how many are still there after ``END_TIMEOUT_S``.
    """
    deadline = time.monotonic() + END_TIMEOUT_S
    while True:
        if os.geteuid() == 0:
            _kill_all_of(uid)
        below = _descendants(os.getpid())
        for pid in below:
            _kill(pid)
        _reap_all()
        if not below or time.monotonic() > deadline:
            return len(below)
        time.sleep(0.001)


def processes_of_user(uid: int) -> int:
    """Processes and threads of this user, as RLIMIT_NPROC counts them."""
    count = 0
    for pid in _pids():
        try:
            if os.stat(f"/proc/{pid}").st_uid == uid:
                count += len(os.listdir(f"/proc/{pid}/task"))
        except OSError:  # ended while we looked
            continue
    return count


def _kill_all_of(uid: int) -> None:
    """kill(-1) reaches every process that the caller may signal: call it as that user."""
    child = os.fork()
    if child == 0:
        try:
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            os.kill(-1, signal.SIGKILL)
        finally:
            os._exit(0)  # also where the user could not be assumed, or has no other process
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, 0)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _reap_all() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for pid in _pids():
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                parent = int(file.read().rpartition(")")[2].split()[1])
        except OSError:  # ended while we looked
            continue
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    front = [root]
    while front:
        below = children.get(front.pop(), [])
        found += below
        front += below
    return found
