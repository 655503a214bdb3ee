"""``python -m heddle.engines.sglang.tether PARENT_PID COMMAND...``: a command that dies with its parent.

SGLang does not watch who started it; a server that outlived Heddle would keep its GPUs. This process asks the
kernel (Linux) to be killed when its parent ends and then becomes the command: the wish survives ``exec``, and
SGLang's own children follow their parent in the same way.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
NOT_STARTED = 127
"""Exit code where the command cannot be executed, as a shell has it."""


def main(argv: list[str]) -> None:
    """Become ``argv[1:]``, tied to the process ``argv[0]``."""
    parent_pid, command = int(argv[0]), argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before the kernel could be told
        os._exit(1)
    try:
        os.execvp(command[0], command)
    except OSError as exc:
        sys.stderr.write(f"cannot execute {command[0]}: {exc.strerror}\n")
        sys.exit(NOT_STARTED)


if __name__ == "__main__":
    main(sys.argv[1:])
