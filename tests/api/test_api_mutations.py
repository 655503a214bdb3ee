"""What changes state runs to its end, and its failure is heard by somebody."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from heddle.api.context import Mutations
from heddle.errors import StoreError


async def fail_after(gate: asyncio.Event) -> None:
    await gate.wait()
    raise StoreError("the disk is full")


async def test_a_failure_goes_to_the_caller_who_waits() -> None:
    """And only there: it is logged where requests fail."""
    gate = asyncio.Event()
    gate.set()
    with capture_logs() as logged, pytest.raises(StoreError):
        await Mutations().run(fail_after(gate))

    assert logged == []


async def test_a_failure_whose_caller_left_is_logged() -> None:
    """A client that hung up hears nothing, so the operator must."""
    mutations, gate = Mutations(), asyncio.Event()
    caller = asyncio.create_task(mutations.run(fail_after(gate)))
    await asyncio.sleep(0)
    caller.cancel()
    with capture_logs() as logged:
        with pytest.raises(asyncio.CancelledError):
            await caller
        gate.set()
        await mutations.finish(5.0)

    [line] = logged
    assert (line["event"], line["log_level"]) == ("http.mutation.failed", "warning")
    assert str(line["exc_info"]) == "the disk is full"
