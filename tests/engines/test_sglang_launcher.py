"""Servers are started, waited for, and gone when they should be: on processes that stand in for SGLang."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from heddle.engines.sglang.adapter import SGLangSettings
from heddle.engines.sglang.attach import AttachLauncher, find_servers
from heddle.engines.sglang.command import DeviceKind, ServerTemplate
from heddle.engines.sglang.launcher import LaunchRules, MemoryInUse, SGLangLauncher, SGLangWorker
from heddle.engines.sglang.leases import Leases, port_is_free
from heddle.errors import ConfigError, EngineUnavailable
from heddle.types import WorkerId, WorkerSpec

STAND_IN = Path(__file__).with_name("stand_in_server.py")
PATIENT = LaunchRules(ready_timeout_s=60.0)


def spec(number: int = 0, degree: int = 1) -> WorkerSpec:
    """A worker of this degree with four slots."""
    return WorkerSpec(WorkerId(f"w{number}"), degree, slots=4)


def launcher(
    tmp_path: Path,
    behaviour: str = "sound",
    *,
    devices: int = 1,
    rules: LaunchRules = PATIENT,
    memory_in_use: MemoryInUse | None = None,
) -> SGLangLauncher:
    """Starts stand-ins instead of servers, on ports that the kernel would not give to others."""
    template = ServerTemplate(
        model="tiny",
        context_tokens=1024,
        state_dir=tmp_path,
        command=(sys.executable, str(STAND_IN), behaviour),
        device=DeviceKind.CUDA if memory_in_use else DeviceKind.CPU,
    )
    base_port = 20000 + os.getpid() % 500 * 16
    leases = Leases(range(devices), base_port)
    return SGLangLauncher(
        template, leases, rules, memory_in_use=memory_in_use, engine_settings=SGLangSettings()
    )


@asynccontextmanager
async def launched(launcher: SGLangLauncher, tmp_path: Path) -> AsyncIterator[SGLangWorker]:
    """One worker, stopped in the end whatever happens."""
    worker = await launcher.launch(spec(), tmp_path / "w0.log")
    try:
        yield worker
    finally:
        await worker.stop()


def log_of(tmp_path: Path) -> list[str]:
    """What the server printed, without the header."""
    return (tmp_path / "w0.log").read_text().splitlines()[1:]


def is_running(pid: int) -> bool:
    """Whether a process lives; one that nobody has reaped does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def gone(pid: int) -> None:
    """Wait until a process has ended."""
    async with asyncio.timeout(20):
        while is_running(pid):
            await asyncio.sleep(0.01)


async def test_a_server_is_waited_for_and_says_what_it_can(tmp_path: Path) -> None:
    """It is asked until it is ready; fewer slots than were wanted are told."""
    async with launched(launcher(tmp_path, "slow"), tmp_path) as worker:
        assert is_running(worker.pid)
        assert (worker.slots, worker.kv_capacity_tokens) == (3, 1000)
        assert log_of(tmp_path).count("GET /ready ") == 3
    assert not is_running(worker.pid)


async def test_a_stop_aborts_what_runs_and_frees_port_and_devices(tmp_path: Path) -> None:
    """In this order; afterwards the same launcher starts a server in the same place."""
    starts = launcher(tmp_path)
    async with launched(starts, tmp_path) as first:
        pass
    assert [line for line in log_of(tmp_path) if "abort" in line] == [
        'POST /abort_request {"abort_all":true}'
    ]
    assert port_is_free(first.plan.ports.http)
    async with launched(starts, tmp_path) as second:
        assert (second.plan.devices, second.plan.ports) == (first.plan.devices, first.plan.ports)
    await second.stop()  # once more is harmless


async def test_a_server_without_ready_is_asked_to_generate(tmp_path: Path) -> None:
    """As servers were before there was ``/ready``."""
    async with launched(launcher(tmp_path, "old"), tmp_path):
        assert "GET /health_generate " in log_of(tmp_path)


async def test_a_server_that_ends_at_once_is_reported_with_its_last_words(tmp_path: Path) -> None:
    """And with the log that has the rest."""
    with pytest.raises(EngineUnavailable, match=r"exited with code 1; its last words: no kernel.*w0\.log"):
        await launcher(tmp_path, "broken").launch(spec(), tmp_path / "w0.log")


async def test_a_command_that_does_not_exist_is_reported(tmp_path: Path) -> None:
    """By its name."""
    template = ServerTemplate("tiny", 1024, tmp_path, command=("no-such-sglang",), device=DeviceKind.CPU)
    starts = SGLangLauncher(
        template, Leases([0], 29000), PATIENT, memory_in_use=None, engine_settings=SGLangSettings()
    )
    with pytest.raises(EngineUnavailable, match=r"code 127; its last words: cannot execute no-such-sglang"):
        await starts.launch(spec(), tmp_path / "w0.log")


async def test_a_server_that_does_not_get_ready_is_ended(tmp_path: Path) -> None:
    """Nothing of it is left, and its devices are free."""
    before = set(psutil.Process().children())
    starts = launcher(tmp_path, "deaf", rules=LaunchRules(ready_timeout_s=2.0))
    for _ in range(2):
        with pytest.raises(EngineUnavailable, match="not ready within 2 s"):
            await starts.launch(spec(), tmp_path / "w0.log")
    assert {child for child in psutil.Process().children() if is_running(child.pid)} <= before


async def test_a_cancelled_start_leaves_nothing(tmp_path: Path) -> None:
    """However far it has come."""
    before = set(psutil.Process().children())
    start = asyncio.create_task(launcher(tmp_path, "deaf").launch(spec(), tmp_path / "w0.log"))
    async with asyncio.timeout(30):
        while not (tmp_path / "w0.log").exists() or not log_of(tmp_path):
            await asyncio.sleep(0.01)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert {child for child in psutil.Process().children() if is_running(child.pid)} <= before


async def test_a_server_that_ignores_the_request_to_end_is_killed(tmp_path: Path) -> None:
    """After its grace."""
    rules = LaunchRules(ready_timeout_s=60.0, stop_grace_s=0.2)
    worker = await launcher(tmp_path, "stubborn", rules=rules).launch(spec(), tmp_path / "w0.log")
    await worker.stop()
    assert not is_running(worker.pid)


@pytest.mark.parametrize("victim", [None, "leader", "server"])
async def test_no_child_of_a_server_survives_it(tmp_path: Path, victim: str | None) -> None:
    """Neither a stop nor a crash leaves a scheduler behind that holds the GPU; how it ended is told."""
    async with launched(launcher(tmp_path, "parent"), tmp_path) as worker:
        (child,) = [int(line.split()[1]) for line in log_of(tmp_path) if line.startswith("child")]
        if victim is not None:
            (server,) = psutil.Process(worker.pid).children()
            os.kill(worker.pid if victim == "leader" else server.pid, signal.SIGKILL)
            assert "was killed by SIGKILL" in await worker.wait()
        assert is_running(child)
    await gone(child)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
async def test_a_server_and_its_children_die_with_the_process_that_started_it() -> None:
    """Although nobody is left who could stop them, and they do not watch themselves."""
    command = "['sh', '-c', 'echo $$; sleep 600 & echo $!; wait']"
    tether = f"[sys.executable, '-P', '-m', 'heddle.engines.sglang.tether', str(os.getpid()), *{command}]"
    program = f"import os, subprocess, sys; subprocess.Popen({tether}, start_new_session=True).wait()"
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    family = [int(await parent.stdout.readline()) for _ in range(2)]
    assert all(map(is_running, family))
    parent.kill()
    await parent.wait()
    for pid in family:
        await gone(pid)


async def test_a_start_waits_for_devices_that_another_worker_gives_back(tmp_path: Path) -> None:
    """As when a pool is made into another one: the old workers drain, the new ones come up behind them."""
    starts = launcher(tmp_path, devices=2)
    pair = await starts.launch(spec(0, degree=2), tmp_path / "w0.log")
    single = asyncio.create_task(starts.launch(spec(1), tmp_path / "w1.log"))
    await asyncio.sleep(0)
    assert not single.done()
    await pair.stop()
    worker = await single
    assert worker.plan.devices == (0,)
    await worker.stop()


async def test_a_start_does_not_wait_for_ever() -> None:
    """It fails with the names of those who hold the devices, and may be tried again."""
    leases = Leases([0], 29000)
    await leases.take(WorkerId("w7"), 1, wait_s=1.0)
    with pytest.raises(EngineUnavailable, match="held by w7"):
        await leases.take(WorkerId("w8"), 1, wait_s=0.01)


async def test_cores_are_shared_once_all_are_taken() -> None:
    """A CPU is divided fairly by its kernel; a GPU by nobody."""
    leases = Leases([0, 1], 29000, shared=True)
    taken = [await leases.take(WorkerId(f"w{n}"), 1, wait_s=0.01) for n in range(3)]
    assert [lease.devices for lease in taken] == [(0,), (1,), (0,)]
    assert len({lease.ports for lease in taken}) == 3


async def test_a_start_waits_until_the_memory_of_its_gpus_is_free(tmp_path: Path) -> None:
    """The driver gives it back a moment after the process that held it."""
    shares = iter([{0: 0.7}, {0: 0.04}])
    asked: list[Sequence[int]] = []

    def memory_in_use(indices: Sequence[int]) -> dict[int, float]:
        asked.append(indices)
        return next(shares)

    async with launched(launcher(tmp_path, memory_in_use=memory_in_use), tmp_path):
        assert asked == [(0,), (0,)]


async def test_memory_that_stays_in_use_is_reported(tmp_path: Path) -> None:
    """And the devices are given back, so that a later start can have them."""
    rules = LaunchRules(ready_timeout_s=60.0, memory_timeout_s=0.05)
    starts = launcher(tmp_path, rules=rules, memory_in_use=lambda indices: {0: 0.7})
    for _ in range(2):
        with pytest.raises(EngineUnavailable, match="GPU 0: 70% of its memory is in use"):
            await starts.launch(spec(), tmp_path / "w0.log")


# ------------------------------------------------------------------------- servers of somebody else


async def test_a_server_of_somebody_else_is_used_and_left_running(tmp_path: Path) -> None:
    """A stop lets go of it, and the same worker may come back to it."""
    async with launched(launcher(tmp_path), tmp_path) as theirs:
        servers = await find_servers([theirs.url])
        attach = AttachLauncher(
            servers, context_tokens=1024, ready_timeout_s=60.0, engine_settings=SGLangSettings()
        )
        for _ in range(2):
            ours = await attach.launch(spec(), tmp_path / "unused.log")
            assert (ours.url, ours.slots) == (theirs.url, 3)
            await ours.stop()
        assert is_running(theirs.pid)
        with pytest.raises(ConfigError, match="w1: no server of degree 1 is left"):
            await attach.launch(spec(1), tmp_path / "unused.log")
        assert not [line for line in log_of(tmp_path) if "abort" in line]


async def test_a_server_that_does_not_answer_is_named(tmp_path: Path) -> None:
    """Before anything is begun."""
    async with launched(launcher(tmp_path), tmp_path) as theirs:
        nobody = f"http://127.0.0.1:{theirs.plan.ports.ports[-1]}"
        with pytest.raises(ConfigError, match=f"{nobody} is no SGLang server"):
            await find_servers([theirs.url, nobody])
        with pytest.raises(ConfigError, match="named twice"):
            await find_servers([theirs.url, theirs.url])
