"""Kills coordinators and starts them anew on the same data, and looks at what is left in the end."""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.context import ForkServerContext
from pathlib import Path
from unittest.mock import patch

import orjson
import psutil
from crash_child import DEADLINE_S, CrashAt, Work, run_coordinator

from heddle.records import Timing, Trajectory, decode_trajectory
from heddle.store.sqlite import open_store
from heddle.types import BatchId

_PR_SET_CHILD_SUBREAPER = 36
GONE_WITHIN_S = 10.0
"""From ``kill -9`` of a coordinator to the end of everything below it."""


class Rig:
    """Starts coordinators from a server process that has imported everything already."""

    def __init__(self, context: ForkServerContext) -> None:
        self._context = context
        self._own: set[int] = set()

    def settle(self) -> None:
        """Start the helpers of this kind of process, so that what appears later is an orphan."""
        # The server process does not take over the import path by itself.
        with patch.dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)):
            first = self._context.Process(target=int)
            first.start()
        first.join(DEADLINE_S)
        self._own = {child.pid for child in psutil.Process().children()}

    def run(self, work: Work, crash: CrashAt | None = None, *, kill_after_s: float | None = None) -> bool:
        """One life of a coordinator; whether it came to its end. Fails on an end of another kind."""
        process = self._context.Process(target=run_coordinator, args=(work, crash))
        process.start()
        process.join(DEADLINE_S if kill_after_s is None else kill_after_s)
        if process.is_alive():
            assert kill_after_s is not None, f"a coordinator did not end within {DEADLINE_S:g} s"
            process.kill()
            process.join()
        code = process.exitcode
        process.close()
        assert code in (0, -signal.SIGKILL), f"a coordinator ended with {code}"
        return code == 0

    def orphans(self) -> list[psutil.Process]:
        """Processes that outlived their coordinator; they have become children of this one."""
        found = [child for child in psutil.Process().children() if child.pid not in self._own]
        return [child for child in found if not _reaped(child)]

    def wait_for_orphans(self) -> None:
        """Until none is left, or too long."""
        deadline = time.monotonic() + GONE_WITHIN_S
        while left := self.orphans():
            assert time.monotonic() < deadline, f"still there after {GONE_WITHIN_S:g} s: {left}"
            time.sleep(0.02)


@contextmanager
def crash_rig() -> Iterator[Rig]:
    """A rig that adopts whatever a killed coordinator leaves running."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["crash_child"])
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    try:
        rig = Rig(context)
        rig.settle()
        yield rig
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _reaped(process: psutil.Process) -> bool:
    """Take notice of its end, if it has ended."""
    try:
        if process.status() != psutil.STATUS_ZOMBIE:
            return False
        process.wait(0)
    except (psutil.NoSuchProcess, psutil.TimeoutExpired):
        pass
    return True


def stored_records(data_dir: Path) -> list[bytes]:
    """Every finished record of the batch, in the order of finishing."""

    async def read() -> list[bytes]:
        async with open_store(data_dir / "heddle.db") as store:
            return [row.record for row in await store.finished(BatchId("b"), after=0, limit=100_000)]

    return asyncio.run(read())


def essence(record: Trajectory) -> Trajectory:
    """A record without what a clock, a worker, a predictor or a repetition put into it."""
    steps = [
        replace(
            step,
            worker_id="",
            cached_tokens=0,
            segments=1,
            queue_s=0.0,
            prefill_s=0.0,
            decode_s=0.0,
            tool_calls=tuple(
                replace(call, queue_s=0.0, cold_start_s=0.0, run_s=0.0, retries=0) for call in step.tool_calls
            ),
        )
        for step in record.steps
    ]
    return replace(record, attempt=0, steps=steps, predictions=[], timing=Timing())


def essences(records: list[bytes]) -> dict[str, Trajectory]:
    """By trajectory. Fails where one is there twice."""
    decoded = [decode_trajectory(record) for record in records]
    assert len({record.trajectory_id for record in decoded}) == len(decoded)
    return {record.trajectory_id: essence(record) for record in decoded}


def unresolved_calls(record: Trajectory) -> int:
    """Calls whose delivery nobody knows."""
    return sum(call.outcome == "unresolved" for step in record.steps for call in step.tool_calls)


def deliveries(work: Work) -> Counter[str]:
    """How often each call that must not be repeated was delivered."""
    return Counter(work.effects.read_text(encoding="utf-8").split() if work.effects.exists() else [])


def check_recovered(work: Work, reference: Mapping[str, Trajectory], finished_before: list[bytes]) -> int:
    """Everything that must hold after the end, however often it crashed. Returns the unresolved calls."""
    records = stored_records(work.data_dir)
    assert records[: len(finished_before)] == finished_before, "a finished record changed"
    found = essences(records)
    assert found.keys() == reference.keys(), "a trajectory was lost"
    unresolved = 0
    for trajectory_id, record in found.items():
        unresolved += unresolved_calls(record)
        if not unresolved_calls(record):
            assert record == reference[trajectory_id], f"{trajectory_id} differs from the undisturbed run"
    assert max(deliveries(work).values(), default=0) <= 1, "a call was delivered twice"
    assert [path.name for path in (work.data_dir / "sandboxes").glob("*")] == []
    return unresolved


def counted(work: Work) -> dict[str, int]:
    """The instants of a run that was not killed."""
    counts: dict[str, int] = orjson.loads(work.counts.read_bytes())
    return counts
