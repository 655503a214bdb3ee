"""Garbage collection that nobody waits for.

A full collection visits every object of the process: with thousands of trajectories open it stops the event
loop for a tenth of a second and more, and Python starts one whenever it has made enough objects, which is
when there is most to do. A process that serves puts them off until no batch is open, or for a bounded time;
what lives shortly is collected as ever, in small steps.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

YOUNG_OBJECTS = 2_000
"""New objects, less those that are gone, between two collections of the youngest; it takes some tenths of a
millisecond."""

YOUNG_ROUNDS = 10
"""Collections of the youngest to one of those that survived it, which takes a few milliseconds."""

NEVER = 1_000_000_000
"""Collections of the young to a full one."""

LOOK_S = 10.0
"""Between two looks whether nothing is open."""

LONGEST_S = 600.0
"""Between two full collections where something is open all the time."""


@contextmanager
def young_only() -> Iterator[None]:
    """Inside, full collections do not start by themselves."""
    before = gc.get_threshold()
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_ROUNDS, NEVER)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def uncollected() -> Iterator[None]:
    """Inside, nothing is collected: for what makes much, all of it to stay, and looks at nothing else."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@asynccontextmanager
async def collecting_at_rest(at_rest: Callable[[], bool]) -> AsyncIterator[None]:
    """Inside, everything is collected now and then while ``at_rest()``, and at the latest ``LONGEST_S`` after
    the last time. What is there already is taken to stay, and left out."""
    gc.freeze()
    chore = asyncio.create_task(_collect(at_rest), name="garbage")
    try:
        yield
    finally:
        chore.cancel()
        await asyncio.wait({chore})
        gc.unfreeze()


async def _collect(at_rest: Callable[[], bool]) -> None:
    loop = asyncio.get_running_loop()
    last = loop.time()
    worked = False
    while True:
        await asyncio.sleep(LOOK_S)
        resting = at_rest()
        worked = worked or not resting
        if worked and (resting or loop.time() - last >= LONGEST_S):
            gc.collect()
            last, worked = loop.time(), False
