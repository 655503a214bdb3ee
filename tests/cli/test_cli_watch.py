"""``heddle watch``: following a batch ends with it, whatever the server still remembers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import cast

import orjson
import pytest
from cli_builders import make_status

from heddle.api.service import BatchStatus, ServerEvent
from heddle.cli.output import Output
from heddle.cli.watch import _print_events
from heddle.client import Client


@dataclass
class ForgetfulServer:
    """Runs one batch whose end it no longer remembers when it is asked for events."""

    looks: int = 0

    async def batch(self, batch_id: str) -> BatchStatus:
        self.looks += 1
        return make_status(batch_id=batch_id, state="running" if self.looks == 1 else "finished")

    async def events(self, after: int | None = None) -> AsyncIterator[ServerEvent]:
        yield ServerEvent(9, "gap", {"first_missing": 1, "last_missing": 9})
        await asyncio.Event().wait()


async def test_an_end_that_lies_in_a_gap_is_seen(capsys: pytest.CaptureFixture[str]) -> None:
    """The event of the end never comes; the state of the batch tells."""
    async with asyncio.timeout(10):
        await _print_events(cast("Client", ForgetfulServer()), "b", Output(json=True))

    last = orjson.loads(capsys.readouterr().out.splitlines()[-1])
    assert (last["name"], last["data"]["state"]) == ("status", "finished")
