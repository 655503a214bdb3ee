"""JSONL: one finished record per line, in the JSON that the store keeps."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from pydantic import ValidationError

from heddle.errors import HeddleError
from heddle.records import Trajectory, decode_trajectory, encode_trajectory


class RecordFileError(HeddleError):
    """A file of records cannot be written, or read; the message names it, and the line or row."""


class LineWriter:
    """Writes JSON lines, each one flushed, so that a reader may follow the file while it grows.

    With ``atomic`` the lines go to a ``.partial`` file beside ``path``, which takes its place when the block
    ends well and is removed when it does not: nobody ever sees half a file. Raises ``RecordFileError``.
    """

    def __init__(self, path: Path, *, atomic: bool = False) -> None:
        self._path = path
        self._target = path.with_name(path.name + ".partial") if atomic else path
        self._file = self._open()
        self.written = 0

    def write(self, trajectory: Trajectory) -> None:
        """Append one record."""
        self.write_line(encode_trajectory(trajectory))

    def write_line(self, record: bytes) -> None:
        """Append a record that is encoded already."""
        try:
            self._file.write(record + b"\n")
            self._file.flush()
        except OSError as exc:
            raise RecordFileError(f"cannot write {self._target}: {exc.strerror}") from exc
        self.written += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        atomic = self._target != self._path
        try:
            with self._file as file:
                if atomic and kind is None:
                    file.flush()
                    os.fsync(file.fileno())
            if atomic and kind is None:
                self._target.replace(self._path)
        except OSError as exc:
            raise RecordFileError(f"cannot finish {self._path}: {exc.strerror}") from exc
        finally:
            if atomic:
                self._target.unlink(missing_ok=True)

    def _open(self) -> BinaryIO:
        try:
            return self._target.open("wb")
        except OSError as exc:
            raise RecordFileError(f"cannot write {self._target}: {exc.strerror}") from exc


def read_jsonl(path: Path) -> Iterator[Trajectory]:
    """Records one by one; blank lines are skipped. Raises ``RecordFileError`` that names the line."""
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield _decode(path, number, line)
    except OSError as exc:
        raise RecordFileError(f"cannot read {path}: {exc.strerror}") from exc


def _decode(path: Path, number: int, line: bytes) -> Trajectory:
    try:
        return decode_trajectory(line)
    except ValidationError as exc:
        raise RecordFileError(f"{path}, line {number}: {first_problem(exc)}") from exc


def first_problem(error: ValidationError) -> str:
    """The first thing that is wrong, with its field: one line for a person."""
    problem = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in problem["loc"])
    return f"{where}: {problem['msg']}" if where else problem["msg"]
