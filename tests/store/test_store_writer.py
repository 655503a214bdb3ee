"""The writer and its transactions: groups, their bounds, their waking, full disks, and a writer that dies."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from store_builders import make_batch, make_entry

from heddle.errors import StoreError
from heddle.store import schema
from heddle.store import writer as writer_module
from heddle.store.rules import Write
from heddle.store.transactions import Transactions
from heddle.store.writer import GroupWriter, Outcome


def test_a_full_disk_is_an_error_for_whom_it_meets(tmp_path: Path) -> None:
    """The rest of the group is written, and so is what fits afterwards."""
    path = tmp_path / "store.db"
    connection = schema.open_database(path, "normal")
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages + 4}")
    transactions = Transactions(path, connection, patience_s=0.0)
    big = make_entry("b-g1-t0", payload=b"x" * 100_000)
    outcomes = transactions.apply([make_entry("b-g0-t0"), big, make_entry("b-g2-t0")])
    assert [str(outcome) for outcome in outcomes] == [
        "True",
        f"cannot write store {path}: database or disk is full",
        "True",
    ]
    assert transactions.apply([make_batch()]) == [True]
    assert (transactions.stats.appended, transactions.stats.transactions) == (2, 2)
    connection.close()


def test_a_disk_that_is_full_for_a_while_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody hears of it but the operator: the group is written when there is room."""
    path = tmp_path / "store.db"
    connection = schema.open_database(path, "normal")
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages + 4}")
    waits: list[float] = []

    def make_room_after_the_third_wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            connection.execute("PRAGMA max_page_count = 1000000")

    monkeypatch.setattr(time, "sleep", make_room_after_the_third_wait)
    transactions = Transactions(path, connection, patience_s=60.0)
    big = make_entry("b-g1-t0", payload=b"x" * 100_000)
    assert transactions.apply([make_entry("b-g0-t0"), big]) == [True, True]
    assert len(waits) == 3
    assert (transactions.stats.appended, transactions.stats.full_disks) == (2, 1)
    connection.close()


async def test_a_group_is_bounded_in_number_and_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither many small writes nor a few large ones make an endless transaction."""
    monkeypatch.setattr(writer_module, "MAX_GROUP_WRITES", 10)
    monkeypatch.setattr(writer_module, "MAX_GROUP_BYTES", 1000)
    groups: list[int] = []
    taken, queued = threading.Event(), threading.Event()

    def apply(group: Sequence[Write]) -> Sequence[Outcome]:
        taken.set()
        queued.wait(timeout=30)
        groups.append(len(group))
        return [True] * len(group)

    writer = GroupWriter(apply, gather_s=0.0)
    first = asyncio.create_task(writer.write(make_batch()))
    await asyncio.to_thread(taken.wait, 30)
    sizes = [1] * 20 + [400] * 6
    rest = [asyncio.create_task(writer.write(make_entry(payload=b"x" * size))) for size in sizes]
    await asyncio.sleep(0)
    queued.set()
    await asyncio.gather(first, *rest)
    await writer.close()
    assert groups == [1, 10, 10, 3, 3]


async def test_the_callers_of_a_group_wake_a_few_a_turn() -> None:
    """Whoever else is ready gets the loop in between."""
    taken, queued = threading.Event(), threading.Event()

    def apply(group: Sequence[Write]) -> Sequence[Outcome]:
        taken.set()
        queued.wait(timeout=30)
        return [True] * len(group)

    writer = GroupWriter(apply, gather_s=0.0)
    writes = [asyncio.create_task(writer.write(make_entry(sequence=n))) for n in range(50)]
    await asyncio.to_thread(taken.wait, 30)
    queued.set()
    woken = [0]
    async with asyncio.timeout(30):
        while woken[-1] < 50:
            await asyncio.sleep(0)
            woken.append(sum(write.done() for write in writes))
    await writer.close()
    steps = [after - before for before, after in itertools.pairwise(woken)]
    assert max(steps) == writer_module.WAKES_PER_TURN


async def test_the_death_of_the_writer_is_told_to_everyone() -> None:
    """Whoever waits and whoever comes later gets an error; nobody hangs, and closing works."""

    def apply(_: Sequence[Write]) -> Sequence[Outcome]:
        raise ZeroDivisionError("a bug")

    writer = GroupWriter(apply, gather_s=0.0)
    writes = [writer.write(make_entry(sequence=n)) for n in range(5)]
    async with asyncio.timeout(30):
        outcomes = await asyncio.gather(*writes, return_exceptions=True)
        assert [str(outcome) for outcome in outcomes] == ["the store's writer died: a bug"] * 5
        assert all(isinstance(outcome, StoreError) for outcome in outcomes)
        with pytest.raises(StoreError, match="writer died: a bug"):
            await writer.write(make_entry())
        await writer.close()
