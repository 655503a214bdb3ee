"""Devices and ports in the hands of workers: who holds what on this machine, and who waits for it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from heddle.engines.sglang.command import HOST
from heddle.engines.sglang.devices import choose_devices
from heddle.engines.sglang.ports import PortBlock, choose_ports
from heddle.errors import EngineUnavailable
from heddle.types import WorkerId


@dataclass(frozen=True, slots=True)
class Lease:
    """What one worker has to itself until it gives it back."""

    worker_id: WorkerId
    devices: tuple[int, ...]
    ports: PortBlock


def port_is_free(port: int) -> bool:
    """Whether a server could listen there now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


class Leases:
    """Gives out devices of ``order`` and blocks of ports from ``base_port`` on, each to one worker.

    ``shared`` devices (the cores of a CPU) are given out again once all are taken.
    """

    def __init__(
        self,
        order: Sequence[int],
        base_port: int,
        *,
        shared: bool = False,
        is_free: Callable[[int], bool] = port_is_free,
    ) -> None:
        self._order = tuple(order)
        self._base_port = base_port
        self._shared = shared
        self._is_free = is_free
        self._held: dict[WorkerId, Lease] = {}
        self._returned = asyncio.Event()

    async def take(self, worker_id: WorkerId, degree: int, *, wait_s: float) -> Lease:
        """``degree`` devices and a block of ports, as soon as others have given back enough.

        Raises ``ConfigError`` where that can never be, ``EngineUnavailable`` after ``wait_s``.
        """
        try:
            async with asyncio.timeout(wait_s):
                while (devices := self._choose(degree)) is None:
                    self._returned.clear()
                    await self._returned.wait()
        except TimeoutError as exc:
            holders = ", ".join(sorted(self._held))
            raise EngineUnavailable(
                f"{degree} free devices were not to be had within {wait_s:g} s; held by {holders}"
            ) from exc
        taken = {lease.ports for lease in self._held.values()}
        lease = Lease(worker_id, devices, choose_ports(self._base_port, taken, self._is_free))
        self._held[worker_id] = lease
        return lease

    def give_back(self, lease: Lease) -> None:
        """Free for others from now on; harmless when repeated."""
        if self._held.get(lease.worker_id) is lease:
            del self._held[lease.worker_id]
            self._returned.set()

    def _choose(self, degree: int) -> tuple[int, ...] | None:
        taken = {device for lease in self._held.values() for device in lease.devices}
        devices = choose_devices(degree, self._order, taken)
        return choose_devices(degree, self._order, ()) if devices is None and self._shared else devices
