"""Event log files: appended without blocking the event loop, read back with a torn end tolerated.

A writer thread empties a buffer every :data:`FLUSH_INTERVAL_S`; what it has written is with the operating
system and survives ``kill -9`` of the process. A fresh control plane starts a fresh log: files are never
appended to. The format is :mod:`heddle.control.log`.
"""

from __future__ import annotations

import errno
import math
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from heddle.control.build import PlaneSettings
from heddle.control.log import LogEntry, decode_entry, decode_header, encode_header
from heddle.errors import StoreError

FLUSH_INTERVAL_S = 0.2
"""Longest time for which a line stays in this process only: what a crash may lose of the log."""

FULL_DISK_PATIENCE_S = 60.0
"""For how long lines are kept in memory while the disk is full, before appending fails."""

CLOSE_DEADLINE_S = 30.0
"""A disk that takes longer than this for the last lines is given up."""


class EventLogWriter:
    """Appends lines to a new file. Owned by one thread (the event loop's), but for its own writer."""

    def __init__(self, path: Path, settings: PlaneSettings) -> None:
        """Create ``path`` with its header. Raises ``StoreError`` where it exists or cannot be written."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("xb", buffering=0)
            self._file.write(encode_header(settings) + b"\n")
        except OSError as exc:
            raise StoreError(f"cannot create event log {path}: {exc}") from exc
        self.path = path
        self._lines: deque[bytes] = deque()
        self._unwritten = memoryview(b"")
        """What did not fit on a full disk."""
        self._give_up_at = math.inf
        self._failure: OSError | None = None
        self._closing = threading.Event()
        self._writing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="event-log", daemon=True)
        self._thread.start()

    def append(self, line: bytes) -> None:
        """Buffer one line (without newline); microseconds, never blocks.

        Raises ``StoreError`` after a write has failed or the log was closed.
        """
        if self._failure is not None:
            raise StoreError(f"event log {self.path} cannot be written: {self._failure}") from self._failure
        if self._closing.is_set():
            raise StoreError(f"event log {self.path} is closed")
        self._lines.append(line)

    def flush(self) -> None:
        """Write what is buffered; blocks. Raises ``StoreError``."""
        self._write_out()
        if self._failure is not None:
            raise StoreError(f"event log {self.path} cannot be written: {self._failure}") from self._failure

    def close(self) -> None:
        """Write what is buffered and end the thread; blocks. A second call does nothing.

        Raises ``StoreError`` where lines were lost.
        """
        if self._closing.is_set():
            return
        self._closing.set()
        self._thread.join(CLOSE_DEADLINE_S)
        if self._thread.is_alive():
            raise StoreError(f"event log {self.path} was not written within {CLOSE_DEADLINE_S:.0f} s")
        self._file.close()
        if self._failure is not None:
            raise StoreError(f"event log {self.path} cannot be written: {self._failure}") from self._failure

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        # The last round comes after closing began, so it takes everything that was ever accepted.
        while not self._closing.wait(FLUSH_INTERVAL_S):
            self._write_out()
        self._write_out()

    def _write_out(self) -> None:
        with self._writing:
            if self._failure is not None:
                return
            try:
                if self._unwritten or self._lines:
                    self._write_lines()
                self._give_up_at = math.inf
            except OSError as exc:
                if exc.errno != errno.ENOSPC or self._room_is_late():
                    self._failure = exc

    def _write_lines(self) -> None:
        lines = [self._lines.popleft() + b"\n" for _ in range(len(self._lines))]
        self._unwritten = memoryview(b"".join([self._unwritten, *lines]))
        while self._unwritten:
            self._unwritten = self._unwritten[self._file.write(self._unwritten) :]

    def _room_is_late(self) -> bool:
        now = time.monotonic()
        self._give_up_at = min(self._give_up_at, now + FULL_DISK_PATIENCE_S)
        return now >= self._give_up_at or self._closing.is_set()


@dataclass(frozen=True, slots=True)
class EventLog:
    """A log as it was read."""

    settings: PlaneSettings
    entries: tuple[LogEntry, ...]
    torn_bytes: int
    """Length of an incomplete last line, which was left out; 0 for a log that was closed properly."""


def read_event_log(path: Path) -> EventLog:
    """Read a whole log. Raises ``StoreError`` that names the line; only the last may be incomplete."""
    try:
        content = path.read_bytes()
    except OSError as exc:
        raise StoreError(f"cannot read event log {path}: {exc}") from exc
    *lines, tail = content.split(b"\n")
    if not lines:
        raise StoreError(f"{path}: not an event log: it has no complete line")
    entries = []
    for number, line in enumerate(lines, start=1):
        try:
            if number == 1:
                settings = decode_header(line)
            else:
                entries.append(decode_entry(line))
        except StoreError as exc:
            raise StoreError(f"{path}, line {number}: {exc}") from exc
    return EventLog(settings, tuple(entries), len(tail))
