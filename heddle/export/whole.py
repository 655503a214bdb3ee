"""Files that are there whole or not at all."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from heddle.errors import HeddleError


class OutputFileError(HeddleError):
    """A file cannot be written; the message names it and says why."""


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which appears under its name, on the disk, when the block ends well.

    Until then it grows as ``.partial`` beside ``path``, for one writer at a time, and goes where the block
    fails. A link is followed: the file behind it is replaced. What is there and no regular file, such as a
    pipe or ``/dev/stdout``, would only be destroyed by that, so it is written to directly. Raises
    ``OutputFileError``; what is written within the block, see :func:`writing`.
    """
    with writing(path):
        target = Path(os.path.realpath(path))
        partial = target.with_name(target.name + ".partial")
        replaces = target.is_file() or not target.exists()
        file = _claimed(partial) if replaces else target.open("wb")
    try:
        yield file
        with writing(path), file:
            file.flush()
            if replaces:
                os.fsync(file.fileno())
                partial.replace(target)
    except BaseException:
        with suppress(OSError):  # of bytes that nobody wants any more
            file.close()
        if replaces:
            partial.unlink(missing_ok=True)
        raise


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """The boundary to the file system: what it refuses becomes an ``OutputFileError`` about ``path``."""
    try:
        yield
    except OSError as exc:
        raise OutputFileError(f"cannot write {path}: {exc.strerror or exc}") from exc


def _claimed(partial: Path) -> BinaryIO:
    """Opened and emptied for this process alone; the lock goes with the process."""
    file = open(os.open(partial, os.O_WRONLY | os.O_CREAT, 0o666), "wb")  # noqa: SIM115 - the caller closes it
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(file.fileno()), partial.stat()):
            raise BlockingIOError  # while this one waited, it became another's result
        file.truncate()
    except BaseException as exc:
        file.close()
        if isinstance(exc, (BlockingIOError, FileNotFoundError)):
            raise OutputFileError(f"cannot write {partial}: another process is writing it") from exc
        raise
    return file
