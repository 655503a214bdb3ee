"""What goes wrong, and when: a function of a seed. Instants are counted in events, not in seconds."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum

MOST_FAULTS = 8
LAST_EVENT = 120
"""Faults come before this event; a batch has about as many."""


class Fault(StrEnum):
    """Everything that a schedule may do to a coordinator and to what it works with."""

    CRASH_WORKER = "crash_worker"
    HANG = "hang"
    """The next generation gives no token until its deadline."""
    SLOW = "slow"
    """The next generation gives its tokens too slowly for its deadline."""
    GARBAGE = "garbage"
    """The next generation gives ids that no vocabulary has."""
    REJECT = "reject"
    """The next generation is refused as such."""
    TOOL_CRASH = "tool_crash"
    """The next call meets a broken backend."""
    TOOL_HANG = "tool_hang"
    """The next call does not end before its limit."""
    CLIENT_LEAVES = "client_leaves"
    """Who waits for trajectories, or listens to events, hangs up."""
    CANCEL = "cancel"
    PAUSE = "pause"
    DRAIN = "drain"
    ADD_WORKER = "add_worker"
    RESTART = "restart"
    """The coordinator ends and another one goes on with its journal."""


@dataclass(frozen=True, slots=True)
class Incident:
    """A fault, at the instant when so many events have been handled. ``target`` picks among what there is."""

    after_events: int
    fault: Fault
    target: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """One run: how large it is, and what befalls it."""

    seed: int
    workers: int
    slots: int
    batches: int
    prompts: int
    scheduler: str
    incidents: tuple[Incident, ...]


def draw(seed: int) -> Schedule:
    """The schedule of this seed."""
    rng = random.Random(seed)
    incidents = [
        Incident(rng.randrange(LAST_EVENT), rng.choice(list(Fault)), rng.randrange(1000))
        for _ in range(rng.randint(1, MOST_FAULTS))
    ]
    return Schedule(
        seed=seed,
        workers=rng.randint(1, 3),
        slots=rng.randint(1, 3),
        batches=rng.randint(1, 2),
        prompts=rng.randint(1, 5),
        scheduler=rng.choice(["fcfs", "shortest_first", "progressive", "round_robin"]),
        incidents=tuple(sorted(incidents, key=lambda incident: incident.after_events)),
    )
