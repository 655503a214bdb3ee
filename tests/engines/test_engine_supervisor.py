"""The supervisor restarts, paces itself, gives up, and stops whatever it was doing."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from heddle.engines.fake import FakeFaults, FakeLauncher, FakeWorker
from heddle.engines.supervisor import (
    HealthCheck,
    RestartPacing,
    RunningWorker,
    SupervisedWorker,
)
from heddle.errors import ConfigError, EngineUnavailable
from heddle.types import WorkerId, WorkerSpec

SPEC = WorkerSpec(WorkerId("w0"), tp_degree=1, slots=2)
PATIENT_CHECK = HealthCheck()
IMPATIENT = RestartPacing(first_s=0.001, longest_s=0.002)


class Diary:
    """A listener that remembers, and that can be waited for."""

    def __init__(self) -> None:
        self.entries: list[str] = []
        self.workers: list[RunningWorker] = []
        self._news = asyncio.Event()

    def worker_ready(self, spec: WorkerSpec, worker: RunningWorker) -> None:
        self.workers.append(worker)
        self._note("ready")

    def worker_lost(self, worker_id: WorkerId, reason: str, will_restart: bool) -> None:
        self._note(f"lost ({'restart' if will_restart else 'given up'}): {reason}")

    def worker_stopped(self, worker_id: WorkerId) -> None:
        self._note("stopped")

    async def until(self, count: int) -> None:
        """Wait until there are ``count`` entries."""
        while len(self.entries) < count:
            self._news.clear()
            await asyncio.wait_for(self._news.wait(), timeout=10)

    @property
    def kinds(self) -> list[str]:
        return [entry.partition(" ")[0] for entry in self.entries]

    def _note(self, entry: str) -> None:
        self.entries.append(entry)
        self._news.set()


def supervise(
    launcher: FakeLauncher,
    diary: Diary,
    *,
    max_restarts: int = 3,
    pacing: RestartPacing = IMPATIENT,
    health: HealthCheck = PATIENT_CHECK,
) -> SupervisedWorker:
    """A supervised fake with everything defaulted but what a test is about."""
    return SupervisedWorker(
        SPEC,
        launcher,
        diary,
        Path("unused"),
        max_restarts=max_restarts,
        rng=random.Random(0),
        pacing=pacing,
        health=health,
    )


async def test_a_crash_is_reported_and_followed_by_a_restart() -> None:
    """Ready, lost, ready again; the crashed worker is cleaned up as well."""
    diary, launcher = Diary(), FakeLauncher()
    worker = supervise(launcher, diary)
    run = asyncio.create_task(worker.run())
    await diary.until(1)
    launcher.launched[0].engine.crash("injected")
    await diary.until(3)
    worker.request_stop()
    await run
    assert diary.kinds == ["ready", "lost", "ready", "stopped"]
    assert worker.restarts == 1
    assert [launched.stopped for launched in launcher.launched] == [True, True]


async def test_it_gives_up_after_the_last_restart() -> None:
    """Failing starts count; the last loss says that nothing follows, and ``run`` returns."""
    diary = Diary()
    launcher = FakeLauncher(failures=[EngineUnavailable("no luck")] * 3)
    worker = supervise(launcher, diary, max_restarts=2)
    await worker.run()
    retried, given_up = (
        "lost (restart): did not start: no luck",
        "lost (given up): did not start: no luck",
    )
    assert diary.entries == [retried, retried, given_up]
    assert worker.restarts == 2


async def test_a_configuration_error_is_not_retried() -> None:
    """The same start would fail in the same way."""
    diary = Diary()
    await supervise(FakeLauncher(failures=[ConfigError("no such model")]), diary).run()
    assert diary.entries == ["lost (given up): no such model"]


async def test_health_makes_failures_forgotten() -> None:
    """More crashes than restarts are survived if the worker was well in between."""
    diary, launcher = Diary(), FakeLauncher()
    forgiving = RestartPacing(first_s=0.001, longest_s=0.002, forgiven_after_s=0.0)
    worker = supervise(launcher, diary, max_restarts=1, pacing=forgiving)
    run = asyncio.create_task(worker.run())
    for life in range(4):
        await diary.until(2 * life + 1)
        launcher.launched[-1].engine.crash("injected")
    await diary.until(9)
    worker.request_stop()
    await run
    assert worker.restarts == 4


async def test_a_stop_interrupts_a_start() -> None:
    """No ready is reported, and the launch is cancelled rather than waited for."""
    diary, launcher = Diary(), FakeLauncher(launch_delay_s=3600)
    worker = supervise(launcher, diary)
    run = asyncio.create_task(worker.run())
    await asyncio.sleep(0.01)
    worker.request_stop()
    await asyncio.wait_for(run, timeout=5)
    assert diary.entries == ["stopped"]
    assert launcher.launched == []


async def test_a_stop_interrupts_the_pause_between_starts() -> None:
    """Nothing is started again."""
    diary = Diary()
    launcher = FakeLauncher(failures=[EngineUnavailable("no luck")])
    worker = supervise(launcher, diary, pacing=RestartPacing(first_s=3600, longest_s=3600))
    run = asyncio.create_task(worker.run())
    await diary.until(1)
    worker.request_stop()
    await asyncio.wait_for(run, timeout=5)
    assert diary.kinds == ["lost", "stopped"]
    assert worker.restarts == 0


async def test_cancelling_run_stops_the_worker() -> None:
    """The process is gone when the cancellation comes out."""
    diary, launcher = Diary(), FakeLauncher()
    run = asyncio.create_task(supervise(launcher, diary).run())
    await diary.until(1)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert launcher.launched[0].stopped
    assert diary.entries == ["ready"]


async def test_a_worker_that_comes_up_while_cancelled_is_stopped() -> None:
    """A launch that completes in spite of its cancellation leaves nothing behind."""

    class Stubborn(FakeLauncher):
        async def launch(self, spec: WorkerSpec, log_path: Path) -> FakeWorker:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                return await super().launch(spec, log_path)
            raise AssertionError("the launch was to be cancelled")

    launcher = Stubborn()
    run = asyncio.create_task(supervise(launcher, Diary()).run())
    await asyncio.sleep(0.01)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert [worker.stopped for worker in launcher.launched] == [True]


@pytest.mark.parametrize("turns", range(1, 24))
async def test_cancelling_at_any_moment_of_a_start_leaves_no_worker(turns: int) -> None:
    """One that is up, and of which the supervisor is about to hear, is stopped as well."""
    launcher = FakeLauncher()
    run = asyncio.create_task(supervise(launcher, Diary()).run())
    for _ in range(turns):
        await asyncio.sleep(0)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert all(worker.stopped for worker in launcher.launched)


async def test_a_worker_that_hangs_is_lost_and_replaced() -> None:
    """Running is not enough: it must answer."""

    class Deaf(FakeWorker):
        async def wait(self) -> str:
            await asyncio.sleep(3600)
            return "woke up"

    class DeafOnce(FakeLauncher):
        async def launch(self, spec: WorkerSpec, log_path: Path) -> FakeWorker:
            worker = await super().launch(spec, log_path)
            if len(self.launched) > 1:
                return worker
            worker.engine.crash("deaf")
            return Deaf(worker.engine)

    diary = Diary()
    worker = supervise(DeafOnce(), diary, health=HealthCheck(every_s=0.001, deadline_s=1.0, failures=2))
    run = asyncio.create_task(worker.run())
    await diary.until(3)
    worker.request_stop()
    await run
    assert diary.entries[1] == "lost (restart): unhealthy 2 times in a row: deaf"


async def test_an_unexpected_exception_of_a_launcher_is_a_failed_start() -> None:
    """A supervisor outlives its launcher's bugs, and names them."""

    class Broken(FakeLauncher):
        async def launch(self, spec: WorkerSpec, log_path: Path) -> FakeWorker:
            raise OSError("out of file descriptors")

    diary = Diary()
    await supervise(Broken(), diary, max_restarts=0).run()
    assert diary.entries == ["lost (given up): did not start: OSError: out of file descriptors"]


async def test_an_engine_crash_during_work_brings_a_sound_engine(tmp_path: Path) -> None:
    """The fault of the first engine is not repeated by its successor."""
    diary, launcher = Diary(), FakeLauncher(faults=[FakeFaults(crash_after_tokens=0)])
    worker = supervise(launcher, diary)
    run = asyncio.create_task(worker.run())
    await diary.until(1)
    launcher.launched[0].engine.crash("injected")
    await diary.until(3)
    await diary.workers[1].engine.health()
    worker.request_stop()
    await run


def test_pauses_double_up_to_a_limit_within_the_jitter() -> None:
    """The bounds of every pause are known, whatever the dice say."""
    pacing = RestartPacing(first_s=1.0, longest_s=8.0, jitter=0.25)
    rng = random.Random(7)
    for failures, expected in [(1, 1.0), (2, 2.0), (3, 4.0), (4, 8.0), (5, 8.0), (500, 8.0)]:
        assert 0.75 * expected <= pacing.pause_s(failures, rng) <= 1.25 * expected
