"""Full collections wait until nothing is open; what was changed of the collector is put back."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable

import pytest

from heddle import garbage


class Cycle:
    """Only a collection frees it."""

    def __init__(self) -> None:
        self.itself = self


def old_cycle() -> weakref.ref[Cycle]:
    """One that has survived the young generations, and that nobody holds any more."""
    cycle = Cycle()
    gc.collect(1)
    gc.collect(1)
    return weakref.ref(cycle)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_full_collection_waits_for_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "LOOK_S", 0.01)
    looks, resting = 0, False

    def at_rest() -> bool:
        nonlocal looks
        looks += 1
        return resting

    with garbage.young_only():
        async with garbage.collecting_at_rest(at_rest):
            cycle = old_cycle()
            await until(lambda: looks > 5)
            gc.collect(1)
            assert cycle() is not None
            resting = True
            await until(lambda: cycle() is None)


async def test_it_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "LOOK_S", 0.01)
    monkeypatch.setattr(garbage, "LONGEST_S", 0.05)
    with garbage.young_only():
        async with garbage.collecting_at_rest(lambda: False):
            cycle = old_cycle()
            await until(lambda: cycle() is None)


async def test_the_collector_is_as_it_was_afterwards() -> None:
    thresholds, frozen = gc.get_threshold(), gc.get_freeze_count()
    with garbage.young_only():
        async with garbage.collecting_at_rest(lambda: True):
            assert gc.get_threshold()[2] == garbage.NEVER
            assert gc.get_freeze_count() > 0
    assert gc.get_threshold() == thresholds
    assert gc.get_freeze_count() == frozen == 0


def test_inside_of_uncollected_nothing_is_collected() -> None:
    """Also where another one ends inside; afterwards everything is as it was."""
    with garbage.uncollected():
        with garbage.uncollected():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
