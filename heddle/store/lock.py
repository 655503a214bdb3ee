"""One process owns a store: a lock file beside it that names the owner.

The lock is the kernel's (``flock``), so it ends with its process however that ends; the text in the file
only serves the message. The file is never removed: removing it would let two processes lock two files.
"""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path

from heddle.errors import StoreError


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
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._sign(f"process {os.getpid()} on {socket.gethostname()}")
        except BlockingIOError as exc:
            owner = os.pread(self._fd, 512, 0).decode(errors="replace").strip() or "another process"
            os.close(self._fd)
            raise StoreError(f"store {store_path} is in use by {owner}") from exc
        except OSError as exc:
            os.close(self._fd)
            raise StoreError(f"cannot lock store {store_path}: {self._path}: {exc.strerror}") from exc

    def release(self) -> None:
        """Give the store up; once only."""
        self._sign("")
        os.close(self._fd)

    def _sign(self, owner: str) -> None:
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, owner.encode(), 0)
