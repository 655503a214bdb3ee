"""One process owns a store: a lock file beside it that names the owner.

The lock is the kernel's (``flock``), so it ends with its process however that ends; the text in the file
only serves the message. The file is never removed: removing it would let two processes lock two files.

A child that a killed owner was just about to start holds the lock with it until it runs its own program, a
few milliseconds; so the lock of an owner that is gone is waited for.
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
import time
from pathlib import Path

from heddle.errors import StoreError

HANDOVER_S = 5.0
"""Longest wait for the lock of an owner that is gone."""

RETRY_S = 0.005


class OwnerLock:
    """Exclusive ownership of one store, from construction to :meth:`release`.

    Raises ``StoreError``: where another owner holds it (named), or the file cannot be made.
    """

    def __init__(self, store_path: Path) -> None:
        self._path = store_path.with_name(store_path.name + ".lock")
        try:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise StoreError(f"cannot open store {store_path}: {self._path}: {exc.strerror}") from exc
        try:
            self._acquire()
            self._sign(f"process {os.getpid()} on {socket.gethostname()}")
        except BlockingIOError as exc:
            owner = self._owner() or "another process"
            os.close(self._fd)
            raise StoreError(f"store {store_path} is in use by {owner}") from exc
        except OSError as exc:
            os.close(self._fd)
            raise StoreError(f"cannot lock store {store_path}: {self._path}: {exc.strerror}") from exc

    def release(self) -> None:
        """Give the store up; once only."""
        self._sign("")
        os.close(self._fd)

    def _acquire(self) -> None:
        """Raises ``BlockingIOError`` where a living owner holds it, or a dead one's child for too long."""
        give_up_at = time.monotonic() + HANDOVER_S
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > give_up_at or not _is_gone(self._owner()):
                    raise
            time.sleep(RETRY_S)

    def _owner(self) -> str:
        return os.pread(self._fd, 512, 0).decode(errors="replace").strip()

    def _sign(self, owner: str) -> None:
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, owner.encode(), 0)


def _is_gone(owner: str) -> bool:
    """Whether the owner is a process of this machine that has ended, or about to sign."""
    if not owner:
        return True
    named = re.fullmatch(r"process (\d+) on (.+)", owner)
    if named is None or named[2] != socket.gethostname():
        return False
    import psutil  # imported late: a lock that is free needs nobody to be looked for

    try:
        return psutil.Process(int(named[1])).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
