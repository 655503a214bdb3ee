"""Records to files and back, by format.

    ============  ==========================================================================
    ``jsonl``     every record, one JSON object per line
    ``parquet``   every record, one row each
    ``verl``      a padded batch of samples as ``.npz``; loads without pickle
    ``slime``     one slime sample per line of JSON
    ============  ==========================================================================

The trainers' formats leave out what is no sample (:mod:`heddle.export.selection`); the first two hold all.
A file appears under its name when it is complete. Blocking: on an event loop, call it in a thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import orjson

from heddle.export.jsonl import LineWriter, RecordFileError, line_writer, read_jsonl
from heddle.export.parquet import read_parquet, write_parquet
from heddle.export.selection import Excluded
from heddle.export.slime import to_slime_samples
from heddle.export.verl import to_verl
from heddle.export.whole import OutputFileError, whole_file, writing
from heddle.records import Trajectory

__all__ = [
    "ExportFormat",
    "ExportSummary",
    "LineWriter",
    "OutputFileError",
    "RecordFileError",
    "export",
    "line_writer",
    "read_trajectories",
]

ExportFormat: TypeAlias = Literal["jsonl", "parquet", "verl", "slime"]


@dataclass(frozen=True, slots=True)
class ExportSummary:
    """What came of an export."""

    written: int
    excluded: tuple[Excluded, ...] = ()


def export(
    records: Iterable[Trajectory], path: Path, fmt: ExportFormat, *, pad_token_id: int = 0
) -> ExportSummary:
    """Write records to ``path``. ``verl`` and ``slime`` hold the whole batch in memory, the others do not.

    ``pad_token_id`` is for ``verl`` only. Raises ``OutputFileError``, and what reading ``records`` raises;
    then nothing is left at ``path`` that was not there before.
    """
    match fmt:
        case "jsonl":
            with line_writer(path) as out:
                for trajectory in records:
                    out.write(trajectory)
            return ExportSummary(out.written)
        case "parquet":
            return ExportSummary(write_parquet(records, path))
        case "verl":
            return _export_verl(records, path, pad_token_id)
        case "slime":
            selected = to_slime_samples(records)
            with line_writer(path) as out:
                for sample in selected.samples:
                    out.write_line(orjson.dumps(sample))
            return ExportSummary(out.written, selected.excluded)


def read_trajectories(path: Path) -> Iterator[Trajectory]:
    """Records of a JSONL or (by its suffix) Parquet file.

    Raises ``RecordFileError`` that names the line or row, while iterating.
    """
    return read_parquet(path) if path.suffix == ".parquet" else read_jsonl(path)


def _export_verl(records: Iterable[Trajectory], path: Path, pad_token_id: int) -> ExportSummary:
    batch = to_verl(records, pad_token_id=pad_token_id)
    # Object arrays would need pickle to load; as plain strings and integers they do not.
    labels = {name: np.array(values.tolist()) for name, values in batch.non_tensors.items()}
    arrays: dict[str, Any] = {**batch.tensors, **labels}
    with whole_file(path) as file, writing(path):  # given a name instead, numpy would append ".npz" to it
        np.savez_compressed(file, **arrays)
    return ExportSummary(len(batch.tensors["prompts"]), batch.excluded)
