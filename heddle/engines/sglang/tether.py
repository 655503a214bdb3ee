"""``python -m heddle.engines.sglang.tether PARENT_PID COMMAND...``: a command that dies with its parent.

SGLang does not watch who started it, and its schedulers watch their own parent only once they are set up: a
server whose starter is killed would keep its GPUs. This process leads the group of the command and asks the
kernel (Linux) to be told of the parent's end; then it kills the whole group, itself included. SIGTERM is
passed on to the command, and the command's end is this process's own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import FrameType

from heddle.signals import end_with_parent

NOT_STARTED = 127
"""Exit code where the command cannot be executed, as a shell has it."""


def main(argv: list[str]) -> None:
    """Run ``argv[1:]``, tied to the process ``argv[0]``; never returns."""
    parent_pid, command = int(argv[0]), argv[1:]
    signal.signal(signal.SIGUSR1, _kill_group)
    end_with_parent(parent_pid, signal.SIGUSR1)
    try:
        child = subprocess.Popen(command)
    except OSError as exc:
        sys.stderr.write(f"cannot execute {command[0]}: {exc.strerror}\n")
        sys.exit(NOT_STARTED)
    signal.signal(signal.SIGTERM, lambda number, frame: child.send_signal(number))
    _end_as(child.wait())


def _kill_group(number: int, frame: FrameType | None) -> None:
    os.killpg(0, signal.SIGKILL)


def _end_as(code: int) -> None:
    """Exit with this code, or by the signal that it stands for."""
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
