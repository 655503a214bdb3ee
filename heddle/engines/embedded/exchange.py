"""Where the servers of one launcher hand each other saved slots: a directory in a memory file system.

A file is there for one transfer and removed at its end, whatever that is. Files that a server wrote later
than anybody waited for are removed before the next one is made.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from heddle.engines.memory_files import MemoryDirectory, memory_file_system
from heddle.errors import EngineRejected

FAMILY = "heddle-kv-"
"""Begins the names of such directories."""


class KvExchange:
    """A directory of our own. ``budget_bytes`` bounds what transfers under way may take together."""

    def __init__(self, *, budget_bytes: int, parent: Path | None = None) -> None:
        """Raises ``OSError`` where there is no room for a directory."""
        name = f"{FAMILY}{uuid.uuid4().hex}"
        self._owned = MemoryDirectory((parent or memory_file_system()) / name, family=FAMILY)
        self.directory = self._owned.path
        self._budget = budget_bytes
        self._reserved: dict[str, int] = {}

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
