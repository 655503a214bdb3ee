"""Who ends a sandbox, and what is left: crashes of the coordinator, closing, directories, detection."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import textwrap
import time
from pathlib import Path

import pytest
from sandbox_tools import (
    LIMITS,
    LONG_S,
    eventually,
    make_invocation,
    make_sandbox,
    process_ids_with,
    run,
    unique_name,
)

from heddle.errors import ConfigError, ToolBackendError
from heddle.tools.manager import ToolManager
from heddle.tools.ports import ToolOutcome
from heddle.tools.sandbox import (
    Isolation,
    PythonSandbox,
    SandboxDirectories,
    detect_isolation,
    find_interpreter,
)
from heddle.tools.sandbox.directories import process_label
from heddle.tools.sandbox.modes import Interpreter, first_uid, this_interpreter

COORDINATOR = textwrap.dedent(
    """
    import asyncio, sys, time
    from pathlib import Path
    from sandbox_tools import make_sandbox, run
    from heddle.tools.sandbox import detect_isolation

    async def main():
        mode, root, name = sys.argv[1:]
        sandbox = make_sandbox(detect_isolation(mode), Path(root))
        code = f"open('/proc/self/comm', 'w').write({name!r})\\nimport os, time\\n"
        code += "if os.fork() == 0: os.setsid()\\ntime.sleep(1000)"
        await asyncio.gather(run(sandbox, code, timeout_s=1000), run(sandbox, code, timeout_s=1000))

    asyncio.run(main())
    """
)
"""A coordinator of its own, to be killed: two programs of two processes each."""


async def test_kill_9_of_the_coordinator(isolation: Isolation, tmp_path: Path) -> None:
    """Programs do not outlive a coordinator that was killed; the next one clears its directory away."""
    name = unique_name()
    paths = [str(Path(__file__).parent), *sys.path]
    arguments = [isolation.mode, str(tmp_path / "sandboxes"), name]
    coordinator = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", COORDINATOR, *arguments),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    try:
        await eventually(lambda: len(process_ids_with(name)) == 4)
    finally:
        coordinator.send_signal(signal.SIGKILL)
        await coordinator.wait()

    await eventually(lambda: process_ids_with(name) == [])

    directories = SandboxDirectories(tmp_path / "sandboxes")
    assert directories.reap() == 1
    assert list((tmp_path / "sandboxes").iterdir()) == []


async def test_closing_ends_running_programs(isolation: Isolation, tmp_path: Path) -> None:
    """``close`` ends every program; its caller sees an infrastructure failure, not an outcome."""
    name = unique_name()
    sandbox = make_sandbox(isolation, tmp_path / "sandboxes")
    code = f"open('/proc/self/comm', 'w').write({name!r})\nimport time; time.sleep(1000)"
    call = asyncio.create_task(run(sandbox, code))
    await eventually(lambda: len(process_ids_with(name)) == 1)

    await sandbox.close()

    with pytest.raises(ToolBackendError, match="closed"):
        await call
    with pytest.raises(ToolBackendError, match="closed"):
        await run(sandbox, "")
    assert process_ids_with(name) == []
    assert list((tmp_path / "sandboxes").iterdir()) == []


async def test_cancellation_at_any_moment(sandbox: PythonSandbox) -> None:
    """Cancelled before, during and after its start, a call leaves no process and no descriptor."""
    name = unique_name()
    code = f"open('/proc/self/comm', 'w').write({name!r})\nimport time; time.sleep(1000)"
    await run(sandbox, "")
    descriptors = len(os.listdir("/proc/self/fd"))

    for delay_s in (0.0, 0.001, 0.01, 0.03, 0.06, 0.1):
        call = asyncio.create_task(run(sandbox, code))
        await asyncio.sleep(delay_s)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    assert process_ids_with(name) == []
    assert len(os.listdir("/proc/self/fd")) == descriptors


async def test_fifty_calls_four_at_once(sandbox: PythonSandbox) -> None:
    """All calls succeed, never more than four programs run at once, and waiting is told from running."""
    manager = ToolManager({"python": sandbox}, concurrency=4, default_timeout_s=LONG_S)
    code = "import time; print(time.monotonic()); time.sleep(0.02); print(time.monotonic())"

    results = await asyncio.gather(*(manager.invoke(make_invocation(code)) for _ in range(50)))

    spans = [tuple(float(word) for word in result.output.split()) for result in results]
    peak = max(sum(start <= begin < end for start, end in spans) for begin, _ in spans)
    assert {result.outcome for result in results} == {"ok"}
    assert peak <= 4
    assert max(result.queue_s for result in results) > 5 * min(result.queue_s for result in results)
    assert manager.gauges().totals == {"ok": 50}
    assert all(result.run_s >= 0.02 for result in results)


async def test_an_unusable_directory_is_an_infrastructure_failure(
    isolation: Isolation, tmp_path: Path
) -> None:
    """Where no sandbox can be set up the call raises instead of blaming the code."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    sandbox = make_sandbox(isolation, blocked)

    with pytest.raises(ToolBackendError, match="sandbox directory"):
        await run(sandbox, "print(1)")


async def test_an_interpreter_that_is_missing(isolation: Isolation, tmp_path: Path) -> None:
    """An interpreter that does not run is a configuration error, found before the first call."""
    with pytest.raises(ConfigError, match="not a working Python interpreter"):
        find_interpreter(tmp_path / "python")


async def test_another_interpreter(isolation: Isolation, tmp_path: Path) -> None:
    """The interpreter is configurable."""
    interpreter = find_interpreter(Path(sys.executable))
    sandbox = PythonSandbox(
        limits=LIMITS,
        isolation=isolation,
        directories=SandboxDirectories(tmp_path / "sandboxes"),
        interpreter=interpreter,
    )

    result = await run(sandbox, "print('here')")

    await sandbox.close()
    assert (result.output, result.outcome) == ("here\n", ToolOutcome.OK)


async def test_prewarming_leaves_nothing(sandbox: PythonSandbox) -> None:
    """Prewarming runs and ends empty programs; the fixture checks that nothing is left."""
    await sandbox.prewarm(2)

    assert (await run(sandbox, "print(1)")).output == "1\n"


def test_the_reaper_spares_the_living(tmp_path: Path) -> None:
    """Only directories whose owner is dead go: not this process's, not those of unknown origin."""
    mine = process_label(os.getpid())
    assert mine is not None
    reused = f"{os.getpid()}-1"
    for name in (mine, reused, "4999999-77", "notes"):
        (tmp_path / name / "run-0").mkdir(parents=True)

    removed = SandboxDirectories(tmp_path).reap()

    assert removed == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([mine, "notes"])


def test_detection_names_what_is_isolated(isolation: Isolation) -> None:
    """Namespace modes isolate everything; the last resort says in one sentence that it does not."""
    expected = isolation.mode != "rlimits"

    assert isolation.complete is expected
    assert isolation.network_isolated is expected
    assert isolation.filesystem_isolated is expected
    assert isolation.pids_isolated is expected
    assert ("WARNING" in isolation.detail) is not expected


def test_auto_takes_the_strongest(isolation: Isolation) -> None:
    """``auto`` never chooses the last resort where something better works."""
    chosen = detect_isolation("auto")

    assert chosen.complete or not isolation.complete


@pytest.mark.skipif(shutil.which("setarch") is None, reason="no setarch to seem to be another machine with")
def test_a_machine_without_filters_for_system_calls_is_told_of(isolation: Isolation, tmp_path: Path) -> None:
    """What runs there runs with less in its way, and the sentence for people says so."""
    here = this_interpreter()
    elsewhere = tmp_path / "python"
    elsewhere.write_text(f'#!/bin/sh\nexec setarch i686 {here.executable} "$@"\n')
    elsewhere.chmod(0o755)

    found = detect_isolation(isolation.mode, Interpreter(elsewhere, here.visible))

    assert isolation.calls_filtered
    assert "system call" not in isolation.detail
    assert not found.calls_filtered
    assert "No system call is filtered" in found.detail


@pytest.mark.parametrize(
    ("uid_map", "expected"),
    [("0 0 4294967295\n", 0x60000000 + 7 * 128), ("0 100000 65536\n", 61000), ("", 61000)],
)
def test_users_of_programs(uid_map: str, expected: int) -> None:
    """Each coordinator has users of its own, below what a container maps where it is in one."""
    assert first_uid(7, uid_map) == expected


def test_an_unknown_mode_is_refused() -> None:
    """A mode that does not exist is a configuration error that lists those that do."""
    with pytest.raises(ConfigError, match="auto, bubblewrap, namespaces, rlimits"):
        detect_isolation("chroot")


def test_a_missing_bubblewrap_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking for a mode by name never falls back to another."""
    monkeypatch.setenv("PATH", "")

    with pytest.raises(ConfigError, match="not installed"):
        detect_isolation("bubblewrap")


def test_auto_without_bubblewrap_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """``auto`` falls back to the next mode and tells what was missing."""
    monkeypatch.setenv("PATH", "")
    began = time.monotonic()

    chosen = detect_isolation("auto")

    assert chosen.mode in {"namespaces", "rlimits"}
    assert "bubblewrap (bwrap) is not installed" in chosen.detail
    assert time.monotonic() - began < LONG_S
