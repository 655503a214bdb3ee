"""Shards as files of a memory file system, shared by processes that know nothing of each other.

What holds whatever any of them does, and wherever one is killed:

- a reader sees a shard complete or not at all: it is written under another name and then renamed;
- all files together stay within the budget: room is taken (and the file's memory allocated) under one lock
  before anything is written, and what has gone unread for longest makes room;
- a reader that has opened a shard reads it to its end, evicted meanwhile or not: an unlinked file lives until
  it is closed;
- a writer holds a lock on its unfinished file, which dies with it: unfinished files without a lock are swept.

The directory must be on one Linux file system. Nothing here survives a reboot, and nothing has to.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from .heads import Bytes

_LOCK_NAME = "usage"
"""A file of 8 bytes: the memory that all files take. Its lock orders everybody who adds or removes."""
_UNFINISHED = "unfinished"
_EVICTION_SLACK = 0.05
"""Share of the budget that is freed beyond need: a write that evicts looks through all directories."""
_OUT_OF_SPACE = (errno.ENOSPC, errno.EDQUOT)


@dataclass(slots=True)
class StoreCounters:
    """What this process did, since it began."""

    hits: int = 0
    misses: int = 0
    written: int = 0
    refused: int = 0
    """Writes for which there was no room."""
    evicted: int = 0


@dataclass(frozen=True, slots=True)
class _File:
    path: str
    used_ns: int
    nbytes: int


class ShardFiles:
    """Named shards of one ``namespace`` under ``root``; the budget is that of the whole root.

    Methods raise ``OSError`` where the file system fails. Safe in threads.
    """

    def __init__(self, root: Path, *, namespace: str, budget_bytes: int) -> None:
        if budget_bytes < 1:
            raise ValueError(f"the budget must be positive, not {budget_bytes}")
        self.counters = StoreCounters()
        self._root = root
        self._directory = root / namespace
        self._unfinished = root / _UNFINISHED
        self._budget = budget_bytes
        for directory in (self._directory, self._unfinished):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def __contains__(self, name: str) -> bool:
        return os.path.exists(self._directory / name)

    def read(self, name: str, into: Bytes) -> bool:
        """Fill ``into`` with a shard of exactly its size; False where there is none."""
        try:
            fd = os.open(self._directory / name, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self.counters.misses += 1
            return False
        try:
            complete = _read_all(fd, into.data)
        finally:
            os.close(fd)
        self.counters.hits += complete
        self.counters.misses += not complete
        return complete

    def touch(self, names: list[str]) -> None:
        """Mark as used now, the first as the most recent; what is not there is passed over."""
        now = time.time_ns()
        for age, name in enumerate(names):
            with suppress(FileNotFoundError):
                os.utime(self._directory / name, ns=(now - age, now - age))

    def write(self, name: str, shard: Bytes) -> bool:
        """Publish a shard; True where it is there afterwards, also if another was first.

        False where the budget or the file system has no room for it, whatever is evicted.
        """
        if name in self:
            return True
        unfinished = self._unfinished / uuid.uuid4().hex
        fd = self._allocate(unfinished, shard.nbytes)
        if fd is None:
            self.counters.refused += 1
            return False
        try:
            _write_all(fd, shard.data)
            with self._locked() as usage:
                if name in self:
                    usage.add(-_footprint(fd))
                    unfinished.unlink()
                else:
                    unfinished.rename(self._directory / name)
                    self.counters.written += 1
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)
        return True

    def clear(self) -> None:
        """Forget every shard of this namespace."""
        with self._locked() as usage:
            for file in _files(self._directory):
                _unlink(file)
            usage.set(sum(file.nbytes for file in self._survey()))

    def used_bytes(self) -> int:
        """Memory that all files of the root take, unfinished ones included."""
        with self._locked():
            return sum(file.nbytes for file in self._survey())

    # ------------------------------------------------------------------------------------- room

    def _allocate(self, path: Path, nbytes: int) -> int | None:
        """An unfinished file that has its memory already, locked; ``None`` where there is no room."""
        wanted = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        with self._locked() as usage:
            if usage.get() + wanted > self._budget and not self._evict(usage, wanted):
                return None
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                os.posix_fallocate(fd, 0, nbytes)
            except OSError as exc:
                os.close(fd)
                path.unlink()
                if exc.errno in _OUT_OF_SPACE:
                    return None
                raise
            usage.add(_footprint(fd))
            return fd

    def _evict(self, usage: _Usage, wanted: int) -> bool:
        """Under the lock: make room, oldest use first; says whether there is enough now."""
        self._sweep()
        files = sorted(self._survey(), key=lambda file: file.used_ns)
        used = sum(file.nbytes for file in files)
        if used + wanted > self._budget:
            goal = self._budget - wanted - int(self._budget * _EVICTION_SLACK)
            for file in files:
                if used <= goal:
                    break
                if not file.path.startswith(str(self._unfinished)):
                    _unlink(file)
                    used -= file.nbytes
                    self.counters.evicted += 1
        usage.set(used)
        return used + wanted <= self._budget

    def _survey(self) -> Iterator[_File]:
        """Every file that takes memory, unfinished ones included."""
        with os.scandir(self._root) as entries:
            directories = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        for directory in directories:
            yield from _files(Path(directory))

    def _sweep(self) -> None:
        """Remove what dead writers left: nobody holds its lock."""
        for file in _files(self._unfinished):
            try:
                fd = os.open(file.path, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            else:
                _unlink(file)
            finally:
                os.close(fd)

    @contextmanager
    def _locked(self) -> Iterator[_Usage]:
        """The root's lock. Opened anew each time: a lock belongs to what was opened, not to a thread."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        fd = os.open(self._root / _LOCK_NAME, flags, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield _Usage(fd)
        finally:
            os.close(fd)


class _Usage:
    """The recorded use of memory, for whoever holds the lock.

    A writer that is killed leaves it too high, never too low; the next eviction puts it right.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def get(self) -> int:
        return int.from_bytes(os.pread(self._fd, 8, 0), "little")

    def set(self, nbytes: int) -> None:
        os.pwrite(self._fd, nbytes.to_bytes(8, "little"), 0)

    def add(self, nbytes: int) -> None:
        self.set(max(0, self.get() + nbytes))


def _files(directory: Path) -> Iterator[_File]:
    """Files of a directory. What vanishes meanwhile is passed over."""
    with os.scandir(directory) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                yield _File(entry.path, status.st_mtime_ns, status.st_blocks * 512)


def _unlink(file: _File) -> None:
    with suppress(FileNotFoundError):
        os.unlink(file.path)


def _footprint(fd: int) -> int:
    """Memory that a file takes, which is whole pages."""
    return os.fstat(fd).st_blocks * 512


def _write_all(fd: int, data: memoryview) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(fd, data[done:], done)


def _read_all(fd: int, into: memoryview) -> bool:
    """Whether the file has exactly as many bytes as there is room for, which are then read."""
    if os.fstat(fd).st_size != len(into):
        return False
    done = 0
    while done < len(into):
        got = os.preadv(fd, [into[done:]], done)
        if got == 0:
            return False
        done += got
    return True
