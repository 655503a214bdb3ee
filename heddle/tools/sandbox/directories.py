"""The directories that sandboxes use on the host, and the clearing away of those left behind.

All live below one root. Each coordinator has one directory there, named after its process id and the
instant that this process started, so that a later coordinator can tell a dead owner from a living one
even where the process id was given out again.
"""

from __future__ import annotations

import os
import shutil
from itertools import count
from pathlib import Path

from heddle.errors import ToolBackendError


def process_label(pid: int) -> str | None:
    """``<pid>-<start>``, the start in clock ticks since boot; None where no such process lives."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else f"{pid}-{fields[19]}"


class SandboxDirectories:
    """This coordinator's directory below ``root``, made on first use."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._label = process_label(os.getpid()) or str(os.getpid())
        self._numbers = count()

    @property
    def own(self) -> Path:
        """The directory of this process. Raises ``ToolBackendError`` where it cannot be made."""
        path = (self._root / self._label).absolute()
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as exc:
            raise ToolBackendError(f"cannot make the sandbox directory {path}: {exc}") from exc
        return path

    def new(self) -> Path:
        """A fresh, empty, private directory. Raises ``ToolBackendError``."""
        path = self.own / f"run-{next(self._numbers)}"
        try:
            path.mkdir(mode=0o700)
        except OSError as exc:
            raise ToolBackendError(f"cannot make the sandbox directory {path}: {exc}") from exc
        return path

    def reap(self) -> int:
        """Remove what dead coordinators left; returns how many directories went."""
        if not self._root.is_dir():
            return 0
        dead = [path for path in self._root.iterdir() if _owner_is_dead(path.name)]
        for path in dead:
            remove_tree(path)
        return len(dead)

    def close(self) -> None:
        """Remove this process's own directory."""
        remove_tree(self._root / self._label)


def remove_tree(path: Path) -> None:
    """Remove a directory that a program wrote, whatever modes it left behind; missing is fine.

    Nothing may be running in it any more. Raises ``ToolBackendError`` where something stays.
    """
    try:
        try:
            shutil.rmtree(path)
        except PermissionError:
            _open_up(path)
            shutil.rmtree(path)
    except FileNotFoundError:
        pass
    except OSError as exc:
        raise ToolBackendError(f"cannot remove the sandbox directory {path}: {exc}") from exc


def _open_up(directory: Path) -> None:
    """Make every directory from here down writable; links are left alone."""
    directory.chmod(0o700)
    for entry in os.scandir(directory):
        if entry.is_dir(follow_symlinks=False):
            _open_up(Path(entry.path))


def _owner_is_dead(label: str) -> bool:
    pid, _, start = label.partition("-")
    return pid.isdigit() and start.isdigit() and process_label(int(pid)) != label
