"""A journal is all that a trajectory goes on from: in the form of today, in an older one, or damaged."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from base64 import b64encode
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from job_harness import Job, call_text, collect, turn_ids

from heddle.errors import StoreError
from heddle.records import Timing, Trajectory

JOB = Job(pool="1", turn=lambda step: "The end." if step == 3 else call_text("slow" if step == 2 else "echo"))


@pytest.fixture
async def interrupted(tmp_path: Path) -> Path:
    """The data of a coordinator that ended while its trajectory was in the tool of its third step."""
    data_dir = tmp_path / "interrupted"
    async with JOB.coordinator(data_dir) as coordinator:
        await coordinator.submit(JOB.batch())
        async with asyncio.timeout(30):
            while (await coordinator.batch("b")).sampled_tokens < 3 * 60:
                await asyncio.sleep(0.01)
            while (await coordinator.batch("b")).by_phase != {"in_tool": 1}:
                await asyncio.sleep(0.01)
    return data_dir


def rewrite(data_dir: Path, change: Callable[[str, bytes], bytes]) -> Path:
    """``change(kind, payload)`` of every entry, in a copy of the data."""
    copy = Path(shutil.copytree(data_dir, data_dir.with_name(f"changed-{id(change)}")))
    with closing(sqlite3.connect(copy / "heddle.db")) as store, store:
        for rowid, kind, payload in store.execute("SELECT rowid, kind, payload FROM journal").fetchall():
            store.execute("UPDATE journal SET payload = ? WHERE rowid = ?", (change(kind, payload), rowid))
    return copy


def in_base64(kind: str, payload: bytes) -> bytes:
    """As entries were written before: arrays inside of the JSON, the turn to be read from its tokens."""
    line, _, words = payload.partition(b"\n")
    fields: dict[str, Any] = orjson.loads(line)
    for name, item_bytes in (("token_ids", 4), ("logprobs", 8)):
        if name in fields:
            at, items = fields[name]["at"], fields[name]["items"]
            fields[name] = b64encode(words[at : at + items * item_bytes]).decode()
    fields.pop("message", None)
    return orjson.dumps(fields)


async def go_on(data_dir: Path) -> Trajectory:
    """The record, without what depends on the clock."""
    async with JOB.coordinator(data_dir) as coordinator:
        [record] = await collect(coordinator, "b")
    steps = [
        replace(
            step, queue_s=0.0, prefill_s=0.0, decode_s=0.0,
            tool_calls=tuple(replace(call, queue_s=0.0, run_s=0.0) for call in step.tool_calls),
        )
        for step in record.steps
    ]  # fmt: skip
    return replace(record, steps=steps, timing=Timing())


async def test_entries_of_before_are_gone_on_from_as_those_of_today(interrupted: Path) -> None:
    """To the same record; crashes themselves are tried elsewhere."""
    before = rewrite(interrupted, in_base64)
    with closing(sqlite3.connect(before / "heddle.db")) as store:
        store.execute("PRAGMA user_version = 3")
    now = await go_on(interrupted)
    assert now == await go_on(before)
    assert (now.attempt, now.sampled_tokens) == (
        1,
        3 * len(turn_ids(call_text("echo"))) + len(turn_ids("The end.")),
    )
    calls = [call.name for message in now.messages for call in message.tool_calls]
    assert calls == [call.name for step in now.steps for call in step.tool_calls] == ["echo", "echo", "slow"]


def with_longer_arrays(kind: str, payload: bytes) -> bytes:
    """More than there are."""
    return payload.replace(b'"items":', b'"items":1') if kind == "observation" else payload


@pytest.mark.parametrize(
    "damage",
    [
        lambda kind, payload: payload[:-1] if kind == "observation" else payload,
        lambda kind, payload: b"{}" if kind == "observation" else payload,
        with_longer_arrays,
    ],
    ids=["cut off", "emptied", "too long"],
)
async def test_a_damaged_entry_is_refused_by_name(
    damage: Callable[[str, bytes], bytes], interrupted: Path
) -> None:
    """The start says which it is; nothing goes on from half of what was said."""
    damaged = rewrite(interrupted, damage)
    with pytest.raises(StoreError, match=r"journal of b-g0-t0 .* entry 1 of attempt 0 \(observation\)"):
        async with JOB.coordinator(damaged):
            pass


async def test_an_observation_whose_generation_is_gone_is_refused(interrupted: Path) -> None:
    """A gap in a journal is no end of it."""
    with closing(sqlite3.connect(interrupted / "heddle.db")) as store, store:
        store.execute("DELETE FROM journal WHERE sequence = 2")
    with pytest.raises(StoreError, match=r"entry 3 of attempt 0 \(observation\): an observation of no gen"):
        async with JOB.coordinator(interrupted):
            pass
