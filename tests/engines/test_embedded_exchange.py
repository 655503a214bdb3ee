"""The directory of transfers: what it admits, and that nothing stays in it."""

from __future__ import annotations

import gc
import shutil
from pathlib import Path

import pytest

from heddle.engines.embedded.exchange import KvExchange
from heddle.errors import EngineRejected


def test_what_is_under_way_stays_within_the_budget(tmp_path: Path) -> None:
    """And gives its room back at its end, whatever that is."""
    exchange = KvExchange(budget_bytes=100, parent=tmp_path)
    with exchange.file(60) as name:
        (exchange.directory / name).write_bytes(b"x" * 60)
        with (
            pytest.raises(EngineRejected, match=r"60 bytes of KV exceed .* 100, 60 of it taken"),
            exchange.file(60),
        ):
            pytest.fail("admitted beyond the budget")
    with exchange.file(100):
        assert list(exchange.directory.glob("*.kv")) == []


def test_a_full_file_system_is_noticed_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting what is promised to others already."""
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=100))
    exchange = KvExchange(budget_bytes=1 << 30, parent=tmp_path)
    with (
        exchange.file(60),
        pytest.raises(EngineRejected, match=r"60 bytes of KV do not fit .* 40 are free"),
        exchange.file(60),
    ):
        pytest.fail("admitted beyond the file system")


def test_a_file_written_after_its_transfer_is_removed_with_the_next(tmp_path: Path) -> None:
    """A server finishes what nobody waits for any more."""
    exchange = KvExchange(budget_bytes=100, parent=tmp_path)
    with exchange.file(10) as late:
        pass
    (exchange.directory / late).write_bytes(b"late")
    with exchange.file(10) as name:
        (exchange.directory / name).write_bytes(b"now")
        with exchange.file(10):
            assert [path.name for path in exchange.directory.glob("*.kv")] == [name]


def test_the_directory_goes_with_the_exchange(tmp_path: Path) -> None:
    """Also with what lies in it."""
    exchange = KvExchange(budget_bytes=1, parent=tmp_path)
    (exchange.directory / "late.kv").write_bytes(b"late")
    del exchange
    gc.collect()
    assert list(tmp_path.iterdir()) == []
