"""JSONL: one finished record per line, in the JSON that the store keeps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from pydantic import ValidationError

from heddle.errors import HeddleError
from heddle.export.whole import whole_file, writing
from heddle.records import Trajectory, decode_trajectory, encode_trajectory
from heddle.validation import first_fault


class RecordFileError(HeddleError):
    """A file of records cannot be read; the message names it, and the line or row."""


class LineWriter:
    """Writes JSON lines, each flushed, so that a reader may follow the file while it grows."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self.written = 0
        self._file = file
        self._path = path

    def write(self, trajectory: Trajectory) -> None:
        """Append one record. Raises ``OutputFileError``."""
        self.write_line(encode_trajectory(trajectory))

    def write_line(self, record: bytes) -> None:
        """Append a record that is encoded already. Raises ``OutputFileError``."""
        with writing(self._path):
            self._file.write(record + b"\n")
            self._file.flush()
        self.written += 1


@contextmanager
def line_writer(path: Path) -> Iterator[LineWriter]:
    """For a file that appears when the block ends well (:func:`whole_file`). Raises ``OutputFileError``."""
    with whole_file(path) as file:
        yield LineWriter(file, path)


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
        raise RecordFileError(f"{path}, line {number}: {first_fault(exc)}") from exc
