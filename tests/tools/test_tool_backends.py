"""The in-process and the fake backend, and the shaping of output."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sandbox_tools import make_invocation

from heddle.errors import ToolBackendError
from heddle.tools.fake import FakeToolBackend, fake_result
from heddle.tools.inprocess import InProcessBackend, ToolInputError
from heddle.tools.ports import ToolBackend, ToolOutcome
from heddle.tools.sandbox.output import FLOOD_FACTOR, OutputBuffer
from heddle.types import Json


def shout(payload: Mapping[str, Json]) -> str:
    """The handler of these tests."""
    code = payload["code"]
    if not isinstance(code, str) or not code:
        raise ToolInputError("say something")
    if code == "crash":
        raise LookupError("index is gone")
    return code.upper()


def later() -> float:
    return time.monotonic() + 60


async def test_a_handler_answers() -> None:
    """Its text is the observation."""
    backend = InProcessBackend("shout", shout)

    result = await backend.invoke(make_invocation("hey"), later())

    await backend.close()
    assert (result.output, result.outcome, result.ok) == ("HEY", ToolOutcome.OK, True)


async def test_a_handler_refuses_its_input() -> None:
    """``ToolInputError`` is an observation for the model."""
    backend = InProcessBackend("shout", shout)

    result = await backend.invoke(make_invocation(""), later())

    await backend.close()
    assert (result.output, result.outcome) == ("say something", ToolOutcome.ERROR)


async def test_a_handler_crashes() -> None:
    """Anything else that a trusted handler raises is an infrastructure failure with its cause."""
    backend = InProcessBackend("shout", shout)

    with pytest.raises(ToolBackendError, match="index is gone") as caught:
        await backend.invoke(make_invocation("crash"), later())

    await backend.close()
    assert isinstance(caught.value.__cause__, LookupError)


async def test_a_handler_that_overruns_is_abandoned() -> None:
    """The call ends at its deadline; the thread goes on until the handler returns."""
    let_go = threading.Event()

    def stuck(payload: Mapping[str, Json]) -> str:
        let_go.wait(60)
        return "late"

    backend = InProcessBackend("stuck", stuck)

    result = await backend.invoke(make_invocation(), time.monotonic() + 0.02)

    let_go.set()
    await backend.close()
    assert result.outcome is ToolOutcome.TIMED_OUT
    assert result.run_s < 30


async def test_a_fake_keeps_the_deadline() -> None:
    """A fake that would take longer times out, one that is cancelled stops counting as running."""
    backend = FakeToolBackend(lambda invocation: fake_result("x", run_s=1000.0))

    result = await backend.invoke(make_invocation(), time.monotonic() + 0.01)
    call = asyncio.create_task(backend.invoke(make_invocation(), later()))
    await asyncio.sleep(0)
    running = backend.running
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)

    assert result.outcome is ToolOutcome.TIMED_OUT
    assert (running, backend.running) == (1, 0)


@pytest.mark.parametrize("backend", [FakeToolBackend(), InProcessBackend("python", shout)])
async def test_a_closed_backend_refuses(backend: ToolBackend) -> None:
    """After ``close``, which may be called twice, every call is an infrastructure failure."""
    await backend.prewarm(1)
    await backend.close()
    await backend.close()

    with pytest.raises(ToolBackendError, match="closed"):
        await backend.invoke(make_invocation("x"), later())


@given(data=st.binary(max_size=400), cuts=st.lists(st.integers(0, 400), max_size=8), limit=st.integers(2, 32))
def test_output_depends_on_the_bytes_alone(data: bytes, cuts: list[int], limit: int) -> None:
    """However the bytes arrive the text is the same, bounded, and whole where it fits."""
    at_once, in_parts = OutputBuffer(limit), OutputBuffer(limit)
    at_once.add(data)
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    for start, end in pairwise(edges):
        in_parts.add(data[start:end])

    assert at_once.text() == in_parts.text()
    assert at_once.flooded == in_parts.flooded == (len(data) > limit * FLOOD_FACTOR)
    if len(data) <= limit:
        assert at_once.text() == data.decode("utf-8", "replace")
    else:
        assert "omitted ...]" in at_once.text()
        assert len(at_once.text()) <= limit + 60
