"""Directories in a memory file system, which would outlive their purpose if nobody looked after them.

A directory belongs to one process and goes with it. Where that was killed, the next process that claims a
directory of the same family removes what it left.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import weakref
from pathlib import Path

from heddle.errors import ConfigError

_LINUX = Path("/dev/shm")
_LOCK_NAME = ".owner"


def memory_file_system() -> Path:
    """Where files are memory, as on Linux; elsewhere where temporary files go."""
    return _LINUX if _LINUX.is_dir() else Path(tempfile.gettempdir())


class MemoryDirectory:
    """A directory that this process made; empty at first, removed when this object or the process ends."""

    def __init__(self, path: Path, *, family: str) -> None:
        """``family`` begins the names of all directories that may be removed if their owner is gone.

        Raises ``ConfigError`` where ``path`` exists and is no orphan, ``OSError`` where it cannot be made.
        """
        if not path.name.startswith(family):
            raise ValueError(f"{path.name} is not of the family {family}")
        _remove_orphans(path.parent, family)
        try:
            path.mkdir(mode=0o700, parents=True)
        except FileExistsError as exc:
            raise ConfigError(f"{path} is in use by another process, or no directory of Heddle's") from exc
        self.path = path
        owner = os.open(path / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(owner, fcntl.LOCK_EX)
        weakref.finalize(self, _remove, path, owner)


def _remove(path: Path, owner: int) -> None:
    shutil.rmtree(path, ignore_errors=True)
    os.close(owner)


def _remove_orphans(parent: Path, family: str) -> None:
    """Those whose lock nobody holds."""
    for path in parent.glob(f"{family}*"):
        try:
            owner = os.open(path / _LOCK_NAME, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # just being made, or somebody else's
        try:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass
        else:
            shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(owner)
