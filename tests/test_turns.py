"""A turn of the loop serves few slices, whoever asks and however many ask."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from heddle.turns import Turns


class TurnCounter:
    """Numbers the turns of the loop."""

    def __init__(self) -> None:
        self.number = 0
        self._handle = asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self.number += 1
        self._handle = asyncio.get_running_loop().call_soon(self._next)

    def stop(self) -> None:
        self._handle.cancel()


@pytest.mark.parametrize("width", [1, 3])
async def test_a_turn_of_the_loop_serves_no_more_than_its_width(width: int) -> None:
    turns, counter, served = Turns(width), TurnCounter(), Counter[int]()

    async def work() -> None:
        for _ in range(10):
            await turns.next()
            served[counter.number] += 1

    await asyncio.gather(*(work() for _ in range(7)))
    counter.stop()

    assert served.total() == 70
    assert max(served.values()) == width


async def test_those_who_asked_first_are_served_first() -> None:
    turns, order = Turns(), list[str]()

    async def work(name: str) -> None:
        for _ in range(3):
            await turns.next()
            order.append(name)

    await asyncio.gather(*(work(name) for name in "abc"))

    assert "".join(order) == "abcabcabc"


async def test_who_was_cancelled_takes_no_turn_and_holds_nobody_up() -> None:
    turns, counter = Turns(), TurnCounter()
    first, second, third = (asyncio.create_task(turns.next()) for _ in range(3))
    await asyncio.sleep(0)
    second.cancel()
    await first
    began = counter.number
    await third
    counter.stop()

    assert second.cancelled()
    assert counter.number - began == 1
    await asyncio.wait_for(turns.next(), 5)  # it serves again after it has run empty
