"""Parquet: one row per finished record, written and read in bounded memory.

Token arrays are list columns, so that a reader can load ids, mask and logprobs without the rest; logprobs are
doubles and come back exactly as they were. ``failure`` and ``timing`` are structs. What is deep or free in
shape (steps, messages, predictions, reward_info, metadata, sampling) is JSON text in the form of the JSONL
record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from heddle.export.jsonl import RecordFileError
from heddle.export.whole import whole_file, writing
from heddle.records import Timing, Trajectory, decode_trajectory, encode_trajectory
from heddle.validation import first_fault

ROWS_PER_GROUP = 256
"""Rows in memory at once: tens of megabytes at the longest responses."""

_JSON_COLUMNS = ("steps", "messages", "reward_info", "predictions", "metadata", "sampling")

SCHEMA = pa.schema(
    [
        ("trajectory_id", pa.string()),
        ("batch_id", pa.string()),
        ("group_id", pa.string()),
        ("prompt_id", pa.string()),
        ("sample_index", pa.int64()),
        ("attempt", pa.int64()),
        ("environment", pa.string()),
        ("status", pa.string()),
        ("stop_reason", pa.string()),
        ("failure", pa.struct([("kind", pa.string()), ("stage", pa.string()), ("message", pa.string())])),
        ("prompt_ids", pa.list_(pa.int32())),
        ("response_ids", pa.list_(pa.int32())),
        ("response_mask", pa.list_(pa.int8())),
        ("response_logprobs", pa.list_(pa.float64())),
        ("weight_versions", pa.list_(pa.int64())),
        ("steps", pa.string()),
        ("messages", pa.string()),
        ("reward", pa.float64()),
        ("reward_info", pa.string()),
        ("predictions", pa.string()),
        ("timing", pa.struct([(field.name, pa.float64()) for field in fields(Timing)])),
        ("metadata", pa.string()),
        ("sampling", pa.string()),
    ]
)
"""One column per field of :class:`heddle.records.Trajectory`, in its order."""


def write_parquet(trajectories: Iterable[Trajectory], path: Path) -> int:
    """Write all records; returns their number. The file appears when it is complete.

    Raises ``OutputFileError``.
    """
    written = 0
    rest = iter(trajectories)
    with whole_file(path) as file, pq.ParquetWriter(file, SCHEMA, compression="zstd") as writer:
        while rows := [row_of(trajectory) for trajectory in islice(rest, ROWS_PER_GROUP)]:
            with writing(path):
                writer.write_table(pa.Table.from_pylist(rows, schema=SCHEMA))
            written += len(rows)
    return written


def read_parquet(path: Path) -> Iterator[Trajectory]:
    """Records one by one. Raises ``RecordFileError`` that names the row, counted from 1."""
    try:
        with pq.ParquetFile(path) as file:
            missing = set(SCHEMA.names) - set(file.schema_arrow.names)
            if missing:
                raise RecordFileError(f"{path}: there is no column {', '.join(sorted(missing))}")
            number = 0
            for batch in file.iter_batches(batch_size=ROWS_PER_GROUP, columns=SCHEMA.names):
                for row in batch.to_pylist():
                    number += 1
                    yield _record(path, number, row)
    except (OSError, pa.ArrowException) as exc:
        raise RecordFileError(f"cannot read {path}: {exc}") from exc


def row_of(trajectory: Trajectory) -> dict[str, Any]:
    """The cells of one record, by column."""
    row: dict[str, Any] = orjson.loads(encode_trajectory(trajectory))
    for name in _JSON_COLUMNS:
        row[name] = orjson.dumps(row[name]).decode()
    return row


def record_of(row: Mapping[str, Any]) -> Trajectory:
    """The inverse of :func:`row_of`. Raises ``ValueError`` (pydantic's and orjson's are ones)."""
    parsed = {name: orjson.loads(row[name]) for name in _JSON_COLUMNS}
    return decode_trajectory(orjson.dumps({**row, **parsed}))


def _record(path: Path, number: int, row: Mapping[str, Any]) -> Trajectory:
    try:
        return record_of(row)
    except ValidationError as exc:
        raise RecordFileError(f"{path}, row {number}: {first_fault(exc)}") from exc
    except orjson.JSONDecodeError as exc:
        raise RecordFileError(f"{path}, row {number}: a JSON column cannot be read: {exc}") from exc
