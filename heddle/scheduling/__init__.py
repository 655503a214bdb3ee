"""When: the order in which waiting trajectories get a worker's slots."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from heddle.control.ports import Scheduler
from heddle.errors import ConfigError
from heddle.scheduling.fcfs import Fcfs

SCHEDULERS: Mapping[str, Callable[[], Scheduler]] = {"fcfs": Fcfs}


def make_scheduler(name: str) -> Scheduler:
    """The scheduler of this name. Raises ``ConfigError`` that lists the names there are."""
    make = SCHEDULERS.get(name)
    if make is None:
        raise ConfigError(f"unknown scheduler {name!r}; choose one of {', '.join(SCHEDULERS)}")
    return make()
