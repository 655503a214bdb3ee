"""Records written to files come back equal, and a bad file says where it is bad."""

from __future__ import annotations

import math
import os
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import orjson
import pyarrow.parquet as pq
import pytest
from export_records import ALL, CRASHED, OTHER_PROMPT, SOLVED, WRONG
from hypothesis import given
from hypothesis import strategies as st

from heddle.export import parquet
from heddle.export.files import (
    ExportFormat,
    OutputFileError,
    RecordFileError,
    export,
    line_writer,
    read_trajectories,
)
from heddle.export.selection import Exclusion
from heddle.export.slime import to_slime_samples
from heddle.export.verl import to_verl
from heddle.records import Trajectory, decode_trajectory, encode_trajectory


@pytest.mark.parametrize("fmt", ["jsonl", "parquet"])
def test_every_record_comes_back_equal(fmt: ExportFormat, tmp_path: Path) -> None:
    """Failures, empty arrays, nulls and odd floats included."""
    path = tmp_path / f"out.{fmt}"
    assert export(ALL, path, fmt).written == len(ALL)
    assert list(read_trajectories(path)) == ALL
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@given(
    logprobs=st.lists(st.floats(max_value=0.0, allow_nan=False, allow_infinity=False), max_size=20),
    text=st.text(alphabet=st.characters(exclude_categories=["Cs"])),
)
def test_floats_and_text_survive_both_forms(logprobs: list[float], text: str) -> None:
    """Doubles come back bit for bit and text character by character."""
    record = replace(SOLVED, response_logprobs=logprobs, metadata={text: text})
    row = parquet.row_of(record)
    assert decode_trajectory(encode_trajectory(record)) == record
    assert parquet.record_of(row) == record


def test_the_record_equals_its_golden_line() -> None:
    """The product's main output does not change its shape by accident."""
    golden = Path(__file__).parent / "golden" / "record.jsonl"
    assert encode_trajectory(SOLVED) + b"\n" == golden.read_bytes()


def test_parquet_has_list_columns_and_one_column_per_field(tmp_path: Path) -> None:
    """A reader can load token arrays alone, typed."""
    path = tmp_path / "out.parquet"
    export([SOLVED], path, "parquet")
    assert pq.read_schema(path).names == [field.name for field in fields(Trajectory)]
    table = pq.read_table(path, columns=["response_ids", "response_mask"])
    assert table.to_pydict() == {
        "response_ids": [SOLVED.response_ids],
        "response_mask": [SOLVED.response_mask],
    }
    types = {field.name: str(field.type) for field in pq.read_schema(path)}
    assert types["response_logprobs"].startswith("list<")
    assert types["response_logprobs"].endswith("double>")


def test_parquet_is_written_in_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded by the row group, and the order holds across groups."""
    monkeypatch.setattr(parquet, "ROWS_PER_GROUP", 2)
    path = tmp_path / "out.parquet"
    export(iter(ALL), path, "parquet")
    assert pq.ParquetFile(path).num_row_groups == math.ceil(len(ALL) / 2)
    assert list(read_trajectories(path)) == ALL


def test_verl_files_load_without_pickle(tmp_path: Path) -> None:
    """The arrays of the file are the arrays of the batch."""
    path = tmp_path / "batch.npz"
    summary = export(ALL, path, "verl", pad_token_id=9)
    assert (summary.written, len(summary.excluded)) == (3, 3)
    batch = to_verl(ALL, pad_token_id=9)
    with np.load(path, allow_pickle=False) as loaded:
        expected = {**batch.tensors, **batch.non_tensors}
        assert {name: loaded[name].tolist() for name in loaded} == {
            name: values.tolist() for name, values in expected.items()
        }


def test_slime_files_hold_one_sample_per_line(tmp_path: Path) -> None:
    """Infrastructure failures are reported, not written."""
    path = tmp_path / "slime.jsonl"
    summary = export([SOLVED, CRASHED, OTHER_PROMPT], path, "slime")
    lines = path.read_bytes().splitlines()
    assert [orjson.loads(line) for line in lines] == list(to_slime_samples([SOLVED, OTHER_PROMPT]).samples)
    assert [excluded.reason for excluded in summary.excluded] == [Exclusion.INFRA_FAILURE]


def test_lines_can_be_followed_while_they_are_written(tmp_path: Path) -> None:
    """Each record is in the file when ``write`` returns."""
    path = tmp_path / "out.jsonl"
    with line_writer(path) as out:
        out.write(SOLVED)
        assert list(read_trajectories(tmp_path / "out.jsonl.partial")) == [SOLVED]
        out.write(WRONG)
    assert list(read_trajectories(path)) == [SOLVED, WRONG]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("fmt", ["jsonl", "parquet", "verl", "slime"])
def test_a_failed_export_leaves_the_old_file(fmt: ExportFormat, tmp_path: Path) -> None:
    """The new file replaces the old one whole or not at all."""
    path = tmp_path / "out"
    path.write_text("precious")

    def breaking() -> list[Trajectory]:
        raise RuntimeError("the source of records broke")

    with pytest.raises(RuntimeError, match="source of records"):
        export((record for part in ([SOLVED], None) for record in part or breaking()), path, fmt)
    assert path.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("fmt", ["jsonl", "parquet", "verl", "slime"])
def test_an_unwritable_place_is_named(fmt: ExportFormat, tmp_path: Path) -> None:
    """The error carries the path."""
    with pytest.raises(OutputFileError, match="nowhere/out"):
        export([SOLVED], tmp_path / "nowhere" / "out", fmt)


@pytest.mark.parametrize("fmt", ["jsonl", "parquet", "verl", "slime"])
def test_a_link_stays_one(fmt: ExportFormat, tmp_path: Path) -> None:
    """The file behind it is replaced."""
    (tmp_path / "there").mkdir()
    real = tmp_path / "there" / "real"
    real.write_text("old")
    link = tmp_path / "link"
    link.symlink_to(real)
    export([SOLVED], link, fmt)
    assert link.is_symlink()
    assert real.read_bytes() != b"old"
    assert list(real.parent.iterdir()) == [real]


def test_a_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    """So are /dev/stdout and /dev/null: a rename over a device would take it from the whole machine."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        export([SOLVED], pipe, "jsonl")
        assert os.read(reader, 1 << 16) == encode_trajectory(SOLVED) + b"\n"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


@pytest.mark.parametrize("fmt", ["jsonl", "parquet", "verl", "slime"])
def test_a_full_disk_is_an_error_that_names_the_file(fmt: ExportFormat) -> None:
    """/dev/full refuses every byte."""
    with pytest.raises(OutputFileError, match="cannot write /dev/full: No space left on device"):
        export([SOLVED], Path("/dev/full"), fmt)
    assert Path("/dev/full").is_char_device()


def test_two_cannot_write_one_file(tmp_path: Path) -> None:
    """The second is told so, and the first ends whole."""
    path = tmp_path / "out.jsonl"
    with line_writer(path) as out:
        out.write(SOLVED)
        with pytest.raises(OutputFileError, match="another process is writing it"):
            export(ALL, path, "jsonl")
        out.write(WRONG)
    assert list(read_trajectories(path)) == [SOLVED, WRONG]


def test_what_a_killed_writer_left_is_in_nobodys_way(tmp_path: Path) -> None:
    """Its lock went with it, and its bytes do not come back."""
    (tmp_path / "out.jsonl.partial").write_bytes(b"torn" * 10_000)
    export([SOLVED], tmp_path / "out.jsonl", "jsonl")
    assert (tmp_path / "out.jsonl").read_bytes() == encode_trajectory(SOLVED) + b"\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.jsonl"]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'{"trajectory_id": 3}', r"line 3: trajectory_id: "),
        (b"not json", r"line 3: Invalid JSON"),
        (encode_trajectory(SOLVED).replace(b'"completed"', b'"done"', 1), r"line 3: status: "),
        (encode_trajectory(SOLVED)[:-20], r"line 3: Invalid JSON"),
    ],
)
def test_a_bad_line_is_named(line: bytes, problem: str, tmp_path: Path) -> None:
    """Good lines before it are read; blank ones are counted and skipped."""
    path = tmp_path / "in.jsonl"
    path.write_bytes(encode_trajectory(SOLVED) + b"\n\n" + line + b"\n")
    records = read_trajectories(path)
    assert next(records) == SOLVED
    with pytest.raises(RecordFileError, match=problem):
        next(records)


def test_a_bad_row_is_named(tmp_path: Path) -> None:
    """Rows of Parquet count from 1."""
    path = tmp_path / "in.parquet"
    export([SOLVED, WRONG], path, "parquet")
    table = pq.read_table(path)
    rows = table.to_pylist()
    rows[1]["steps"] = "{"
    pq.write_table(table.from_pylist(rows, schema=table.schema), path)
    with pytest.raises(RecordFileError, match="row 2: "):
        list(read_trajectories(path))


def test_a_foreign_parquet_file_is_refused(tmp_path: Path) -> None:
    """Missing columns are named, and so is a file that is no Parquet at all."""
    path = tmp_path / "in.parquet"
    export([SOLVED], path, "parquet")
    pq.write_table(pq.read_table(path).drop_columns(["reward", "timing"]), path)
    with pytest.raises(RecordFileError, match="no column reward, timing"):
        list(read_trajectories(path))
    path.write_text("plain")
    with pytest.raises(RecordFileError, match=r"cannot read .*in\.parquet"):
        list(read_trajectories(path))


@pytest.mark.parametrize("name", ["none.jsonl", "none.parquet"])
def test_a_missing_file_is_named(name: str, tmp_path: Path) -> None:
    """Reading begins with the file."""
    with pytest.raises(RecordFileError, match=f"cannot read .*{name}"):
        list(read_trajectories(tmp_path / name))
