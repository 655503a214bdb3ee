"""Server-sent events: numbering, catching up, gaps."""

from __future__ import annotations

import asyncio

from heddle.api.service import ServerEvent
from heddle.coordinator.broadcast import Broadcaster, Pulse


async def take(broadcaster: Broadcaster, after: int | None, count: int) -> list[ServerEvent]:
    events: list[ServerEvent] = []
    async with asyncio.timeout(5):
        async for event in broadcaster.listen(after):
            events.append(event)
            if len(events) == count:
                break
    return events


async def test_a_listener_catches_up_from_where_it_was() -> None:
    """Last-Event-ID is exclusive."""
    broadcaster = Broadcaster()
    for name in ("a", "b", "c"):
        broadcaster.publish(name, {})

    events = await take(broadcaster, 1, 2)

    assert [(e.event_id, e.name) for e in events] == [(2, "b"), (3, "c")]


async def test_without_a_position_a_listener_hears_only_what_comes() -> None:
    """What was before is not repeated."""
    broadcaster = Broadcaster()
    broadcaster.publish("old", {})
    listening = asyncio.create_task(take(broadcaster, None, 1))
    await asyncio.sleep(0)
    broadcaster.publish("new", {})

    assert [e.name for e in await listening] == ["new"]


async def test_dropped_events_show_as_one_gap() -> None:
    """A client that was away too long is told what it missed."""
    broadcaster = Broadcaster(capacity=2)
    for name in ("a", "b", "c", "d"):
        broadcaster.publish(name, {})

    events = await take(broadcaster, 0, 3)

    assert [e.name for e in events] == ["gap", "c", "d"]
    assert events[0].data == {"first_missing": 1, "last_missing": 2}


async def test_a_position_of_an_earlier_process_misses_nothing_of_this_one() -> None:
    """After a restart numbers begin again: a client neither waits for its old one nor loses what was new."""
    broadcaster = Broadcaster()
    broadcaster.publish("a", {})
    listening = asyncio.create_task(take(broadcaster, 4711, 2))
    await asyncio.sleep(0)
    broadcaster.publish("b", {})

    assert [(e.event_id, e.name) for e in await listening] == [(1, "a"), (2, "b")]


async def test_a_pulse_wakes_all_and_times_out() -> None:
    """Waiting is bounded, and leaves nothing behind."""
    pulse = Pulse()
    waiters = [asyncio.create_task(pulse.wait(5)) for _ in range(3)]
    await asyncio.sleep(0)
    pulse.fire()

    assert [await w for w in waiters] == [True, True, True]
    assert await pulse.wait(0.01) is False


async def test_a_pulse_that_fired_since_the_last_look_is_not_waited_for() -> None:
    """The count closes the gap between looking and waiting."""
    pulse = Pulse()
    seen = pulse.fired
    pulse.fire()

    assert await pulse.wait(0.01, since=seen) is True
    assert await pulse.wait(0.01, since=pulse.fired) is False
