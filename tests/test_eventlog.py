"""Event log files: written behind the caller's back, and readable after a crash."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from heddle.control.build import PlaneSettings
from heddle.control.events import DispatchPaused
from heddle.control.log import encode_entry
from heddle.errors import StoreError
from heddle.eventlog import EventLogWriter, read_event_log

SETTINGS = PlaneSettings(pool="1+1", slots=3, seed=5)


def make_line(seq: int) -> bytes:
    return encode_entry(seq, float(seq), DispatchPaused(), ())


def test_a_closed_log_reads_back_whole(tmp_path: Path) -> None:
    """Header and every appended line, in order, and no torn end."""
    path = tmp_path / "logs" / "run.jsonl"
    with EventLogWriter(path, SETTINGS) as writer:
        for seq in range(1000):
            writer.append(make_line(seq))

    log = read_event_log(path)

    assert log.settings == SETTINGS
    assert [entry.seq for entry in log.entries] == list(range(1000))
    assert log.torn_bytes == 0


def test_flush_makes_lines_visible_before_the_log_is_closed(tmp_path: Path) -> None:
    """What was flushed is in the file."""
    path = tmp_path / "run.jsonl"
    with EventLogWriter(path, SETTINGS) as writer:
        writer.append(make_line(0))
        writer.flush()

        assert len(read_event_log(path).entries) == 1


def test_flushed_lines_survive_a_kill(tmp_path: Path) -> None:
    """kill -9 of the process loses nothing that was flushed."""
    path = tmp_path / "run.jsonl"
    program = f"""
import os, signal
from pathlib import Path
from heddle.control.build import PlaneSettings
from heddle.control.events import DispatchPaused
from heddle.control.log import encode_entry
from heddle.eventlog import EventLogWriter

writer = EventLogWriter(Path({str(path)!r}), PlaneSettings())
for seq in range(10):
    writer.append(encode_entry(seq, 0.0, DispatchPaused(), ()))
writer.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, timeout=60)

    assert done.returncode == -signal.SIGKILL
    assert [entry.seq for entry in read_event_log(path).entries] == list(range(10))


def test_a_torn_last_line_is_left_out_and_reported(tmp_path: Path) -> None:
    """A write that was cut short costs the last line only."""
    path = tmp_path / "run.jsonl"
    with EventLogWriter(path, SETTINGS) as writer:
        writer.append(make_line(0))
        writer.append(make_line(1))
    os.truncate(path, path.stat().st_size - 5)

    log = read_event_log(path)

    assert [entry.seq for entry in log.entries] == [0]
    assert log.torn_bytes == len(make_line(1)) + 1 - 5


def test_a_broken_line_in_the_middle_is_an_error_that_names_it(tmp_path: Path) -> None:
    """Only the end may be torn."""
    path = tmp_path / "run.jsonl"
    with EventLogWriter(path, SETTINGS) as writer:
        for line in (make_line(0), b'{"seq":1', make_line(2)):
            writer.append(line)

    with pytest.raises(StoreError, match=r"run\.jsonl, line 3: not a line of JSON"):
        read_event_log(path)


@pytest.mark.parametrize("content", [b"", b'{"heddle_event_log":1'])
def test_a_log_without_a_header_is_no_log(tmp_path: Path, content: bytes) -> None:
    """Killed before its first line was complete."""
    path = tmp_path / "run.jsonl"
    path.write_bytes(content)

    with pytest.raises(StoreError, match="it has no complete line"):
        read_event_log(path)


def test_a_log_is_never_written_over(tmp_path: Path) -> None:
    """An existing file is refused: a fresh control plane needs a fresh log."""
    path = tmp_path / "run.jsonl"
    EventLogWriter(path, SETTINGS).close()

    with pytest.raises(StoreError, match="cannot create event log"):
        EventLogWriter(path, SETTINGS)


def test_a_closed_log_takes_nothing_more(tmp_path: Path) -> None:
    """Appending after close is an error, closing twice is none."""
    writer = EventLogWriter(tmp_path / "run.jsonl", SETTINGS)
    writer.close()
    writer.close()

    with pytest.raises(StoreError, match="is closed"):
        writer.append(make_line(0))


def test_a_missing_log_says_so(tmp_path: Path) -> None:
    """The path is in the error."""
    with pytest.raises(StoreError, match=r"cannot read event log .*nowhere\.jsonl"):
        read_event_log(tmp_path / "nowhere.jsonl")


def test_a_full_disk_is_told_to_whoever_appends_next(tmp_path: Path) -> None:
    """Lines that cannot be written are an error, not a silence."""
    program = f"""
import resource
from pathlib import Path
from heddle.control.build import PlaneSettings
from heddle.errors import StoreError
from heddle.eventlog import EventLogWriter

resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
writer = EventLogWriter(Path({str(tmp_path / "run.jsonl")!r}), PlaneSettings())
writer.append(b"x" * 8192)
for attempt in (writer.flush, lambda: writer.append(b"y"), writer.close):
    try:
        attempt()
    except StoreError as exc:
        print(exc)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, timeout=60, capture_output=True, text=True
    )

    complaints = done.stdout.splitlines()
    assert len(complaints) == 3
    assert all("cannot be written" in line and "File too large" in line for line in complaints)
