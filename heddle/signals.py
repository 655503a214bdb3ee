"""Signals: in words, and as what ties a process to the one that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9; ``signal 99`` for one that has no name here."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def end_with_parent(parent_pid: int, by: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel (Linux) send this process a signal when its parent ends, however that ends.

    More exactly: when the parent's thread ends that started this process.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, by)
    if os.getppid() != parent_pid:  # it died before the kernel could be told
        os._exit(1)
