"""Where the servers of one launcher hand each other saved slots: a directory in a memory file system.

A file is there for one transfer and removed at its end, whatever that is. Files that a server wrote later
than anybody waited for are removed before the next one is made; the directory goes with this process, or,
where this process was killed, when the next one makes its own.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import uuid
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from heddle.errors import EngineRejected

MEMORY_FILES = Path("/dev/shm")
"""The memory file system of Linux. Elsewhere files go where temporary files go."""
_PREFIX = "heddle-kv-"
_LOCK_NAME = ".owner"


class KvExchange:
    """A directory of our own. ``budget_bytes`` bounds what transfers under way may take together."""

    def __init__(self, *, budget_bytes: int, parent: Path | None = None) -> None:
        """Raises ``OSError`` where there is no room for a directory."""
        parent = parent or (MEMORY_FILES if MEMORY_FILES.is_dir() else Path(tempfile.gettempdir()))
        _reap(parent)
        self.directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        self._budget = budget_bytes
        self._reserved: dict[str, int] = {}
        self._owner = _lock(self.directory / _LOCK_NAME)
        weakref.finalize(self, _remove, self.directory, self._owner)

    @contextmanager
    def file(self, nbytes: int) -> Iterator[str]:
        """The name of a file of up to ``nbytes`` that a server may write; gone when the block is left.

        Raises ``EngineRejected`` where budget or file system have no room for it.
        """
        self._drop_strays()
        held = sum(self._reserved.values())
        if held + nbytes > self._budget:
            raise EngineRejected(
                f"{nbytes} bytes of KV exceed what transfers may take: {self._budget}, {held} of it taken"
            )
        free = shutil.disk_usage(self.directory).free - held
        if nbytes > free:
            raise EngineRejected(f"{nbytes} bytes of KV do not fit into {self.directory}: {free} are free")
        name = f"{uuid.uuid4().hex}.kv"
        self._reserved[name] = nbytes
        try:
            yield name
        finally:
            del self._reserved[name]
            (self.directory / name).unlink(missing_ok=True)

    def _drop_strays(self) -> None:
        for path in self.directory.glob("*.kv"):
            if path.name not in self._reserved:
                path.unlink(missing_ok=True)


def _lock(path: Path) -> int:
    """A lock that ends with this process."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


def _remove(directory: Path, owner: int) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    os.close(owner)


def _reap(parent: Path) -> None:
    """Remove directories whose process is gone: nobody holds their lock."""
    for directory in parent.glob(f"{_PREFIX}*"):
        try:
            fd = os.open(directory / _LOCK_NAME, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # just being made, or somebody else's
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass
        else:
            shutil.rmtree(directory, ignore_errors=True)
        finally:
            os.close(fd)
