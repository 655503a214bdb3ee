"""When: the order in which waiting trajectories get a worker's slots."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from heddle.control.ports import Scheduler
from heddle.errors import ConfigError
from heddle.scheduling.autellix import Autellix
from heddle.scheduling.earned import Earned
from heddle.scheduling.fcfs import Fcfs
from heddle.scheduling.progressive import Progressive
from heddle.scheduling.round_robin import RoundRobin
from heddle.scheduling.shortest_first import ShortestFirst
from heddle.types import Trust

MARGIN_TOKENS = 32.0
"""Lead that a preemption by length needs: about what its abort, its wait and its second start cost."""

TrustSource: TypeAlias = Callable[[], Trust | None]
"""How right the predictor has proved lately."""

SCHEDULERS: Mapping[str, Callable[[float, TrustSource], Scheduler]] = {
    "fcfs": lambda margin_tokens, trust: Fcfs(),
    "round_robin": lambda margin_tokens, trust: RoundRobin(),
    "autellix": lambda margin_tokens, trust: Autellix(),
    "shortest_first": lambda margin_tokens, trust: ShortestFirst(margin_tokens),
    "progressive": lambda margin_tokens, trust: Progressive(margin_tokens),
    "earned": Earned,
}


def no_trust() -> Trust | None:
    """Nothing was measured."""
    return None


def make_scheduler(
    name: str, *, margin_tokens: float = MARGIN_TOKENS, trust: TrustSource = no_trust
) -> Scheduler:
    """The scheduler of this name; ``margin_tokens`` and ``trust`` matter to those by length.

    Raises ``ConfigError`` that lists the names there are.
    """
    make = SCHEDULERS.get(name)
    if make is None:
        raise ConfigError(f"unknown scheduler {name!r}; choose one of {', '.join(SCHEDULERS)}")
    return make(margin_tokens, trust)
