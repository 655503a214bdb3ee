"""From the workers that a pool has to those that it should have. Pure.

Workers that fit stay; the others are drained while new ones come up, which wait for the devices that the old
ones hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from heddle.allocation import Fixed, SlotRule
from heddle.errors import ConfigError, Conflict, InvalidRequest
from heddle.types import WorkerId, WorkerPhase, WorkerSpec

_STAYING = (WorkerPhase.READY, WorkerPhase.STARTING)
"""Those that are there, or will be; one that is down is replaced, it may be down for good."""


class PoolWorker(Protocol):
    """As much of a worker as matters here; ``WorkerView`` has it."""

    @property
    def worker_id(self) -> WorkerId: ...
    @property
    def tp_degree(self) -> int: ...
    @property
    def phase(self) -> WorkerPhase: ...


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a pool may be made of."""

    budget: int
    """GPUs, or threads of a CPU."""
    slots: SlotRule
    exclusive: bool = False
    """No two workers share a unit, as is the way of GPUs."""

    def check_room(self, workers: Sequence[PoolWorker], tp_degree: int) -> None:
        """Raises ``InvalidRequest`` where one worker of this degree is more than there is, and ``Conflict``
        where it would have to share."""
        if tp_degree > self.budget:
            raise InvalidRequest(
                f"{tp_degree} units are more than the {self.budget} there are", path="tp_degree"
            )
        held = sum(worker.tp_degree for worker in workers if worker.phase is not WorkerPhase.DRAINING)
        if self.exclusive and held + tp_degree > self.budget:
            raise Conflict(f"{held} of {self.budget} units are taken, so {tp_degree} more are not there")


@dataclass(frozen=True, slots=True)
class Change:
    """What is to be done."""

    add: tuple[WorkerSpec, ...]
    """Their ids say nothing yet."""
    drain: tuple[WorkerId, ...]


def plan_change(workers: Sequence[PoolWorker], pool: str, capacity: Capacity) -> Change:
    """How ``workers`` become the pool that is spelled out, with as few starts as possible.

    Raises ``InvalidRequest`` where the pool cannot be read or does not fit.
    """
    try:
        wanted = list(Fixed(pool, capacity.slots).allocate(capacity.budget))
    except ConfigError as exc:
        raise InvalidRequest(str(exc), path="pool") from exc
    degrees = sum(spec.tp_degree for spec in wanted)
    if capacity.exclusive and degrees > capacity.budget:
        raise InvalidRequest(f"pool {pool} needs {degrees} units of {capacity.budget}", path="pool")
    drain: list[WorkerId] = []
    for worker in sorted(workers, key=lambda worker: worker.phase is not WorkerPhase.READY):
        if worker.phase is WorkerPhase.DRAINING:
            continue
        fitting = [spec for spec in wanted if spec.tp_degree == worker.tp_degree]
        if fitting and worker.phase in _STAYING:
            wanted.remove(fitting[0])
        else:
            drain.append(worker.worker_id)
    return Change(tuple(wanted), tuple(drain))
