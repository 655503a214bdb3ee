"""When: the order in which waiting trajectories get a worker's slots."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from heddle.control.ports import Scheduler
from heddle.errors import ConfigError
from heddle.scheduling.autellix import Autellix
from heddle.scheduling.fcfs import Fcfs
from heddle.scheduling.progressive import Progressive
from heddle.scheduling.round_robin import RoundRobin
from heddle.scheduling.shortest_first import ShortestFirst

MARGIN_TOKENS = 32.0
"""Lead that a preemption by length needs: about what its abort, its wait and its second start cost."""

SCHEDULERS: Mapping[str, Callable[[float], Scheduler]] = {
    "fcfs": lambda margin_tokens: Fcfs(),
    "round_robin": lambda margin_tokens: RoundRobin(),
    "autellix": lambda margin_tokens: Autellix(),
    "shortest_first": ShortestFirst,
    "progressive": Progressive,
}


def make_scheduler(name: str, *, margin_tokens: float = MARGIN_TOKENS) -> Scheduler:
    """The scheduler of this name; ``margin_tokens`` matters to those by length.

    Raises ``ConfigError`` that lists the names there are.
    """
    make = SCHEDULERS.get(name)
    if make is None:
        raise ConfigError(f"unknown scheduler {name!r}; choose one of {', '.join(SCHEDULERS)}")
    return make(margin_tokens)
