"""What placers compare workers by; each ends with the id, so that there is always one least."""

from __future__ import annotations

from typing import TypeAlias

from heddle.types import WorkerId, WorkerView

Load: TypeAlias = tuple[float, int, WorkerId]


def residents_per_slot(worker: WorkerView) -> Load:
    """Those whose home it is, tools included; ties by fewest placements ever."""
    return worker.resident / worker.slots, worker.placed_total, worker.worker_id


def requests(worker: WorkerView) -> Load:
    """What a router sees: generations that run or wait; ties by fewest placements ever."""
    return float(worker.running + worker.waiting), worker.placed_total, worker.worker_id
