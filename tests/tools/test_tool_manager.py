"""The Tool Manager over a fake backend: fairness, permits, cancellation, accounting."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sandbox_tools import make_invocation

from heddle.agent.ports import ToolInvocation
from heddle.errors import ToolBackendError, ToolRefused
from heddle.tools import manager as manager_module
from heddle.tools.fake import FakeToolBackend, fake_result
from heddle.tools.manager import ToolGauges, ToolManager, ToolObservation
from heddle.tools.ports import BackendResult, ToolOutcome
from heddle.types import TrajectoryId

FOREVER = fake_result("late", run_s=1000.0)


def make_manager(
    backend: FakeToolBackend, *, concurrency: int = 1, seen: list[ToolObservation] | None = None
) -> ToolManager:
    return ToolManager(
        {backend.name: backend},
        concurrency=concurrency,
        default_timeout_s=500.0,
        observe=None if seen is None else seen.append,
    )


def answering(result: BackendResult) -> FakeToolBackend:
    return FakeToolBackend(lambda invocation: result)


async def settle() -> None:
    """Let every task that can go on do so."""
    for _ in range(10):
        await asyncio.sleep(0)


async def until_handed_over(manager: ToolManager) -> None:
    """Stop in the very turn of the loop in which the permit has a new owner that does not know it yet."""
    while manager.gauges().queued == 2:
        await asyncio.sleep(0)


async def test_a_result_passes_through() -> None:
    """The backend's answer comes back with the time in the queue beside it."""
    manager = make_manager(answering(fake_result("no", ToolOutcome.ERROR)))

    result = await manager.invoke(make_invocation())

    assert (result.output, result.ok, result.outcome) == ("no", False, "error")
    assert result.queue_s >= 0.0
    assert manager.gauges() == ToolGauges(running=0, queued=0, totals={"error": 1})


async def test_queue_time_is_told_from_run_time() -> None:
    """Of two calls through one permit the second waits as long as the first runs."""
    manager = make_manager(answering(fake_result(run_s=0.05)))

    first, second = await asyncio.gather(*(manager.invoke(make_invocation()) for _ in range(2)))

    assert first.queue_s < 0.05
    assert second.queue_s >= 0.04
    assert second.run_s >= 0.04


@settings(max_examples=25, deadline=None)
@given(calls=st.integers(1, 30), concurrency=st.integers(1, 6), cancelled=st.sets(st.integers(0, 29)))
def test_permits_are_fair_and_never_lost(calls: int, concurrency: int, cancelled: set[int]) -> None:
    """Whatever is cancelled while it waits or runs: order is kept, the limit holds, all permits return."""

    async def scenario() -> None:
        backend = answering(fake_result(run_s=0.001))
        manager = make_manager(backend, concurrency=concurrency)
        tasks = [
            asyncio.create_task(manager.invoke(make_invocation(trajectory=f"t{n:02}"))) for n in range(calls)
        ]
        await settle()
        for index in cancelled:
            if index < calls:
                tasks[index].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

        began = [invocation.trajectory_id for invocation in backend.invocations]
        assert began == sorted(began)
        assert backend.peak_running <= concurrency
        assert (manager.gauges().running, manager.gauges().queued, backend.running) == (0, 0, 0)
        again = [manager.invoke(make_invocation()) for _ in range(concurrency)]
        async with asyncio.timeout(30):
            await asyncio.gather(*again)

    asyncio.run(scenario())


async def test_a_permit_that_is_handed_over_while_its_taker_is_cancelled() -> None:
    """The permit goes on to the next in line."""
    manager = make_manager(
        FakeToolBackend(lambda call: FOREVER if call.trajectory_id == "a" else fake_result())
    )
    running = asyncio.create_task(manager.invoke(make_invocation(trajectory="a")))
    await settle()
    waiting = [asyncio.create_task(manager.invoke(make_invocation(trajectory=name))) for name in "bc"]
    await settle()

    running.cancel()
    await until_handed_over(manager)
    waiting[0].cancel()

    async with asyncio.timeout(30):
        assert (await waiting[1]).ok
    await asyncio.gather(running, waiting[0], return_exceptions=True)


async def test_active_counts_waiting_and_running_calls() -> None:
    """``active`` says when nothing of a trajectory is left; others do not count."""
    manager = make_manager(answering(FOREVER))
    calls = [asyncio.create_task(manager.invoke(make_invocation(trajectory=name))) for name in "aab"]
    await settle()

    before = [manager.active(TrajectoryId(name)) for name in "abc"]
    for call in calls[:2]:
        call.cancel()
    await asyncio.gather(*calls[:2], return_exceptions=True)

    assert before == [2, 1, 0]
    assert [manager.active(TrajectoryId(name)) for name in "abc"] == [0, 1, 0]
    assert manager.gauges() == ToolGauges(running=1, queued=0, totals={"cancelled": 2})
    await manager.close()
    await asyncio.gather(calls[2], return_exceptions=True)


async def test_the_deadline_reaches_the_backend() -> None:
    """A call's own limit goes before the configured one."""
    manager = make_manager(answering(FOREVER))

    result = await manager.invoke(make_invocation(timeout_s=0.01))

    assert result.outcome == "timed_out"


async def test_a_backend_that_overruns_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend that ignores its deadline is an infrastructure failure, and its run is cancelled."""
    monkeypatch.setattr(manager_module, "OVERRUN_GRACE_S", 0.01)

    class Deaf(FakeToolBackend):
        async def invoke(self, invocation: ToolInvocation, deadline: float) -> BackendResult:
            return await super().invoke(invocation, deadline + 1000)

    backend = Deaf(lambda invocation: FOREVER)
    manager = make_manager(backend)

    with pytest.raises(ToolBackendError, match="overran"):
        await manager.invoke(make_invocation(timeout_s=0.01))

    assert backend.running == 0
    assert manager.gauges().totals == {"backend_error": 1}


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_backend_that_cannot_be_ended_is_left_behind_and_what_it_says_is_late(
    cancelled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call ends, its permit is free, and an answer that comes in the end is counted and ignored."""
    monkeypatch.setattr(manager_module, "OVERRUN_GRACE_S", 0.0)
    monkeypatch.setattr(manager_module, "STRAY_GRACE_S", 0.01)
    released = asyncio.Event()

    class Stubborn(FakeToolBackend):
        async def invoke(self, invocation: ToolInvocation, deadline: float) -> BackendResult:
            if invocation.retry:
                return fake_result("in time")
            while not released.is_set():
                with suppress(asyncio.CancelledError):
                    await released.wait()
            return fake_result("too late")

    seen: list[ToolObservation] = []
    manager = make_manager(Stubborn(), seen=seen)
    call = asyncio.create_task(manager.invoke(make_invocation(timeout_s=1000.0 if cancelled else 0.01)))
    await settle()
    if cancelled:
        call.cancel()
    (outcome,) = await asyncio.gather(call, return_exceptions=True)

    assert type(outcome) is (asyncio.CancelledError if cancelled else ToolBackendError)
    assert (manager.gauges().running, manager.gauges().strays) == (0, 1)
    assert (await manager.invoke(replace(make_invocation(), retry=1))).output == "in time"
    released.set()
    await settle()
    assert manager.gauges().strays == 0
    assert [observation.outcome for observation in seen][1:] == ["ok", "late"]


async def test_a_backend_that_cancels_itself_has_failed() -> None:
    """Passed on, its cancellation would end the trajectory's task without a word."""

    def give_up(invocation: ToolInvocation) -> BackendResult:
        raise asyncio.CancelledError

    manager = make_manager(FakeToolBackend(give_up))
    with pytest.raises(ToolBackendError, match="cancelled its own call"):
        await manager.invoke(make_invocation())


async def test_infrastructure_failures_are_raised_and_counted() -> None:
    """What a backend raises comes out, and the permit is free again."""

    def broken(invocation: ToolInvocation) -> BackendResult:
        raise ToolBackendError("no disk")

    seen: list[ToolObservation] = []
    manager = make_manager(FakeToolBackend(broken), seen=seen)

    for _ in range(2):
        with pytest.raises(ToolBackendError, match="no disk"):
            await manager.invoke(make_invocation())

    assert [observation.outcome for observation in seen] == ["backend_error"] * 2


async def test_whatever_a_backend_raises_is_a_failure_of_the_infrastructure() -> None:
    """A bug of a backend must not be taken for one of the environment that called it."""

    def buggy(invocation: ToolInvocation) -> BackendResult:
        raise LookupError("no such shard")

    seen: list[ToolObservation] = []
    manager = make_manager(FakeToolBackend(buggy), seen=seen)

    with pytest.raises(ToolBackendError, match="LookupError: no such shard"):
        await manager.invoke(make_invocation())
    assert manager.gauges() == ToolGauges(running=0, queued=0, totals={"backend_error": 1})
    assert [observation.outcome for observation in seen] == ["backend_error"]


async def test_an_unknown_backend() -> None:
    """The message names what there is."""
    manager = make_manager(FakeToolBackend())

    with pytest.raises(ToolBackendError, match=r"unknown tool backend 'search' \(known: python\)"):
        await manager.invoke(make_invocation(backend="search"))


async def test_registering() -> None:
    """A registered backend is found by its name; a name is given once."""
    manager = make_manager(FakeToolBackend())
    manager.register(answering_as("search"))

    assert (await manager.invoke(make_invocation(backend="search"))).output == "found"
    with pytest.raises(ToolBackendError, match="registered already"):
        manager.register(answering_as("search"))


def answering_as(name: str) -> FakeToolBackend:
    return FakeToolBackend(lambda invocation: fake_result("found"), name=name)


async def test_observations() -> None:
    """Each finished call is told to the observer once, with its split."""
    seen: list[ToolObservation] = []
    manager = make_manager(answering(fake_result(cold_start_s=0.01, run_s=0.02)), seen=seen)

    await manager.invoke(make_invocation(trajectory="t"))

    (observation,) = seen
    assert (observation.name, observation.trajectory_id, observation.outcome) == ("python", "t", "ok")
    assert observation.cold_start_s == pytest.approx(0.01)
    assert observation.run_s >= 0.015


async def test_closing_turns_everything_away() -> None:
    """Running and waiting calls end with an infrastructure failure, later ones are refused."""
    backend = answering(FOREVER)
    manager = make_manager(backend)
    calls = [asyncio.create_task(manager.invoke(make_invocation())) for _ in range(3)]
    await settle()

    await manager.close()

    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(result) for result in results] == [ToolBackendError, ToolRefused, ToolRefused]
    assert backend.running == 0
    with pytest.raises(ToolBackendError, match="closed"):
        await manager.invoke(make_invocation())


async def test_twenty_thousand_calls_are_cheap() -> None:
    """The manager itself costs microseconds a call."""
    manager = make_manager(FakeToolBackend(), concurrency=64)

    began = time.process_time()
    for _ in range(10):
        await asyncio.gather(*(manager.invoke(make_invocation()) for _ in range(2000)))

    assert manager.gauges().totals == {"ok": 20_000}
    assert time.process_time() - began < 20
