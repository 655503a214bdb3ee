"""Which TCP ports a server gets. Pure; whether a port is in use is asked of the caller."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from heddle.errors import ConfigError

PORTS_PER_WORKER = 16
"""One server takes a block of its own. With attention data parallelism SGLang counts on from the rendezvous
port (scheduler, metrics, one or more for each rank), so there is room behind it."""
LAST_PORT = 65535


@dataclass(frozen=True, slots=True)
class PortBlock:
    """``PORTS_PER_WORKER`` ports that belong to one server."""

    first: int

    @property
    def http(self) -> int:
        return self.first

    @property
    def nccl(self) -> int:
        return self.first + 1

    @property
    def rendezvous(self) -> int:
        """Of ``torch.distributed``; the ports behind it are SGLang's own."""
        return self.first + 2

    @property
    def ports(self) -> range:
        """All of them."""
        return range(self.first, self.first + PORTS_PER_WORKER)


def choose_ports(base: int, taken: Collection[PortBlock], is_free: Callable[[int], bool]) -> PortBlock:
    """The lowest block from ``base`` on that no worker has and in which every port is free.

    Raises ``ConfigError`` where there is none up to the last port.
    """
    for first in range(base, LAST_PORT - PORTS_PER_WORKER + 2, PORTS_PER_WORKER):
        block = PortBlock(first)
        if block not in taken and all(map(is_free, block.ports)):
            return block
    raise ConfigError(f"engine.sglang.base_port: no {PORTS_PER_WORKER} free ports from {base} on")
