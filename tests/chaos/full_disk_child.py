"""A coordinator whose disk is full for a while. Runs in a mount namespace of its own, with a small tmpfs."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import crash_child
import orjson
from crash_child import DEADLINE_S, Work, coordinator_on, finish

from heddle.metrics import Metrics
from heddle.tools.sandbox import Isolation

DISK = "size=6m"
NO_SANDBOX = Isolation("rlimits", False, False, False, "not used")
"""Programs could not become other users in here."""


def main() -> None:
    """Mount, fill, run the batch, make room as soon as the store has found the disk full; print how often."""
    place = Path(sys.argv[1])
    subprocess.run(["mount", "-t", "tmpfs", "-o", DISK, "tmpfs", str(place)], check=True)
    metrics = Metrics()
    work = Work(place / "data", 24, NO_SANDBOX)
    with patch.object(crash_child, "CALLS", ("echo", "post", "echo", "echo")):
        asyncio.run(_run(work, place / "ballast", metrics))
    sys.stdout.buffer.write(orjson.dumps(_full_disks(metrics)))


async def _run(work: Work, ballast: Path, metrics: Metrics) -> None:
    await asyncio.to_thread(work.data_dir.mkdir)
    async with coordinator_on(work, metrics) as coordinator:
        await asyncio.to_thread(_fill, ballast)
        submitting = asyncio.create_task(coordinator.submit(work.batch()))
        async with asyncio.timeout(DEADLINE_S):
            while not _full_disks(metrics):
                await asyncio.sleep(0.05)
        await asyncio.to_thread(ballast.unlink)
        await submitting
        await finish(coordinator)


def _full_disks(metrics: Metrics) -> float:
    return metrics.registry.get_sample_value("heddle_store_full_disks_total") or 0.0


def _fill(ballast: Path) -> None:
    """To the last byte."""
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 16, 1):
            try:
                while True:
                    os.write(file.fileno(), b"x" * size)
            except OSError as exc:
                if exc.errno != errno.ENOSPC:
                    raise


if __name__ == "__main__":
    main()
