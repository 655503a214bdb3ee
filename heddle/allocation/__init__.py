"""How: which workers, of which parallel degree, the budget is made into."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from heddle.allocation.fixed import Fixed
from heddle.control.ports import Allocator
from heddle.errors import ConfigError

ALLOCATORS: Mapping[str, Callable[[str, int], Allocator]] = {"fixed": Fixed}


def make_allocator(name: str, *, pool: str, slots: int) -> Allocator:
    """The allocator of this name, for a pool as written in the configuration and slots per worker.

    Raises ``ConfigError`` that lists the names there are, or says what is wrong with ``pool``.
    """
    make = ALLOCATORS.get(name)
    if make is None:
        raise ConfigError(f"unknown allocator {name!r}; choose one of {', '.join(ALLOCATORS)}")
    return make(pool, slots)
