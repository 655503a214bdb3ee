"""What hostile programs try: real processes, in every mode that works on this machine."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from pathlib import Path

import pytest
from sandbox_tools import LIMITS, eventually, make_sandbox, process_ids_with, run, unique_name

from heddle.tools.ports import ToolOutcome
from heddle.tools.sandbox import Isolation, PythonSandbox, SandboxLimits

RENAME = "open('/proc/self/comm', 'w').write({name!r})\n"
"""Makes a program and its later children findable from outside, by name."""


async def test_a_memory_hog(sandbox: PythonSandbox) -> None:
    """Asking for more than the limit ends as ``memory_exceeded``, with a traceback."""
    result = await run(sandbox, "blocks = []\nwhile True:\n    blocks.append(bytearray(1 << 20))")

    assert ToolOutcome.MEMORY_EXCEEDED is result.outcome
    assert "blocks.append" in result.output
    assert "MemoryError" in result.output
    assert "memory limit of 128 MiB" in result.output


async def test_memory_below_the_limit(sandbox: PythonSandbox) -> None:
    """The limit counts what the program takes beyond the interpreter."""
    result = await run(sandbox, "x = bytearray(100 << 20); print(len(x) >> 20)")

    assert (result.output, result.outcome) == ("100\n", ToolOutcome.OK)


async def test_a_flood_of_output(sandbox: PythonSandbox) -> None:
    """A flood is cut, marked and ended long before the deadline, the same way each time."""
    code = "import sys\nwhile True: sys.stdout.write('0123456789' * 100)"

    began = time.monotonic()
    first = await run(sandbox, code)
    second = await run(sandbox, code)

    assert time.monotonic() - began < 30
    assert (ToolOutcome.OUTPUT_EXCEEDED, first.output) == (second.outcome, second.output)
    assert first.output.startswith("0123456789")
    assert "[... the rest omitted ...]" in first.output
    assert len(first.output) < LIMITS.output_bytes + 100


async def test_long_output_keeps_head_and_tail(sandbox: PythonSandbox) -> None:
    """Output beyond what the model is shown loses its middle; the program's own end still counts."""
    result = await run(sandbox, "print('first'); print('-' * 5000); print('last')")

    assert ToolOutcome.OK is result.outcome
    assert result.output.startswith("first\n---")
    assert result.output.endswith("---\nlast\n")
    assert "[... 3012 bytes omitted ...]" in result.output
    assert result.extra["output_truncated"] is True


async def test_processor_time(isolation: Isolation, tmp_path: Path) -> None:
    """The limit on processor time ends a busy program before the wall clock does."""
    backend = make_sandbox(isolation, tmp_path, SandboxLimits(cpu_s=1))

    result = await run(backend, "while True: pass")

    await backend.close()
    assert ToolOutcome.TIMED_OUT is result.outcome
    assert result.output == "[ended: processor time limit of 1 s]"


async def test_a_fork_bomb(sandbox: PythonSandbox) -> None:
    """Forking stops at the process limit, as root too, and everything is gone afterwards."""
    name = unique_name()
    code = RENAME.format(name=name) + (
        "import os, time\n"
        "alive = 0\n"
        "try:\n"
        "    while alive < 1000:\n"
        "        if os.fork() == 0: time.sleep(1000)\n"
        "        alive += 1\n"
        "except BlockingIOError:\n"
        "    print(alive)"
    )

    result = await run(sandbox, code)

    assert ToolOutcome.OK is result.outcome
    assert 8 <= int(result.output) < LIMITS.max_processes + 1
    assert process_ids_with(name) == []


async def test_an_exponential_fork_bomb(sandbox: PythonSandbox) -> None:
    """A bomb whose children fork as well is held and cleared away at the deadline."""
    name = unique_name()
    code = RENAME.format(name=name) + ("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass")

    result = await run(sandbox, code, timeout_s=0.5)

    assert ToolOutcome.TIMED_OUT is result.outcome
    assert "survivors" not in result.extra
    assert process_ids_with(name) == []


async def test_a_thread_bomb(sandbox: PythonSandbox) -> None:
    """Threads count as processes."""
    code = (
        "import threading, time\n"
        "for count in range(1000):\n"
        "    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()"
    )

    result = await run(sandbox, code)

    assert ToolOutcome.ERROR is result.outcome
    assert "can't start new thread" in result.output


async def test_a_daemon_that_tries_to_survive(sandbox: PythonSandbox) -> None:
    """Double fork, new session, ignored signals: gone when the call returns."""
    name = unique_name()
    code = RENAME.format(name=name) + (
        "import os, signal, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        for number in (signal.SIGHUP, signal.SIGTERM): signal.signal(number, signal.SIG_IGN)\n"
        "        os.close(1); os.close(2)\n"
        "        time.sleep(1000)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "print('left a daemon')"
    )

    result = await run(sandbox, code)

    assert (result.output, result.outcome) == ("left a daemon\n", ToolOutcome.OK)
    assert process_ids_with(name) == []


async def test_killing_everything_in_reach(sandbox: PythonSandbox, isolation: Isolation) -> None:
    """kill(-1) and killing the parent harm nobody but the program's own sandbox."""
    if not isolation.pids_isolated and os.geteuid() != 0:
        pytest.skip("without namespaces and without a user of its own it would end this test run")
    code = (
        "import os, signal\n"
        "for target in (os.getppid(), -1):\n"
        "    try: os.kill(target, signal.SIGKILL)\n"
        "    except (PermissionError, ProcessLookupError): pass\n"
        "print('still here')"
    )

    result = await run(sandbox, code)

    assert result.outcome in {ToolOutcome.OK, ToolOutcome.KILLED}


async def test_the_network(sandbox: PythonSandbox, isolation: Isolation) -> None:
    """A listener on this machine is out of reach, by TCP and by an abstract socket."""
    with socket.socket() as tcp, socket.socket(socket.AF_UNIX) as abstract:
        tcp.bind(("127.0.0.1", 0))
        abstract.bind(f"\0{unique_name()}")
        tcp.listen()
        abstract.listen()
        code = (
            "import socket\n"
            f"for family, address in ((2, {tcp.getsockname()!r}), (1, {abstract.getsockname()!r})):\n"
            "    s = socket.socket(family); s.settimeout(5)\n"
            "    try: s.connect(address); print('reached')\n"
            "    except OSError: print('refused')"
        )

        result = await run(sandbox, code)

    expected = "refused\nrefused\n" if isolation.network_isolated else "reached\nreached\n"
    assert expected == result.output


async def test_a_secret_file(sandbox: PythonSandbox, isolation: Isolation, tmp_path: Path) -> None:
    """A file of the host that anyone may read cannot be read, and its directory not be seen."""
    secret = tmp_path / "secret"
    secret.write_text("s3cret")
    code = (
        f"import os\nfor path in ({str(secret)!r}, '/etc/shadow', '/etc/passwd'):\n"
        "    try: print(open(path).read())\n"
        "    except OSError: print('no')\n"
        f"print(os.path.exists({str(tmp_path)!r}), os.path.exists('/home'), os.path.exists('/var'))"
    )

    result = await run(sandbox, code)

    if isolation.filesystem_isolated:
        assert result.output == "no\nno\nno\nFalse False False\n"


async def test_writing_outside(sandbox: PythonSandbox, isolation: Isolation, tmp_path: Path) -> None:
    """Nothing that the host sees can be written; the interpreter's own files are read-only."""
    os.chmod(tmp_path, 0o777)
    target = tmp_path / "written"
    code = (
        "import os\n"
        f"for path in ({str(target)!r}, os.__file__, '/usr/x', '/x', '/dev/x', '/etc/x'):\n"
        "    try: open(path, 'a').close(); print('written', path)\n"
        "    except OSError: pass"
    )

    result = await run(sandbox, code)

    if isolation.filesystem_isolated:
        assert result.output == ""
        assert not target.exists()


async def test_a_big_file(sandbox: PythonSandbox) -> None:
    """One file stops at its limit with an error that the program sees."""
    result = await run(sandbox, "open('f', 'wb').write(bytes(2 << 20))")

    assert ToolOutcome.ERROR is result.outcome
    assert "File too large" in result.output


async def test_many_big_files(sandbox: PythonSandbox, isolation: Isolation) -> None:
    """All files together stop at the disk limit, where there is a file system of the program's own."""
    code = (
        "import os, itertools\n"
        "for place in ('.', '/tmp', '/dev/shm'):\n"
        "    try:\n"
        "        for i in range(20): open(f'{place}/f{i}', 'wb').write(bytes(1 << 20))\n"
        "    except OSError as exc: print(exc.strerror)"
    )
    if not isolation.filesystem_isolated:
        pytest.skip("not enforced without namespaces")

    result = await run(sandbox, code)

    assert result.output == "No space left on device\n" * 3


async def test_the_environment(sandbox: PythonSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the coordinator's environment, arguments or descriptors reaches the program."""
    monkeypatch.setenv("HEDDLE_SECRET_TOKEN", "hunter2")
    code = (
        "import os\n"
        "print(sorted(os.environ))\n"
        "def leaks(pid):\n"
        "    try: return 'hunter2' in open(f'/proc/{pid}/environ').read()\n"
        "    except OSError: return False\n"
        "print(any(leaks(pid) for pid in ('self', os.getppid(), 1)))\n"
        "def what(fd): return os.readlink(f'/proc/self/fd/{fd}').split(':')[0]\n"
        "print([what(fd) for fd in range(3, 64) if os.path.lexists(f'/proc/self/fd/{fd}')\n"
        "       and not os.path.isdir(f'/proc/self/fd/{fd}')])"
    )

    result = await run(sandbox, code)

    verdict_pipe_alone = "['pipe']"
    assert result.output == f"['HOME', 'LANG', 'LC_ALL', 'PATH', 'TMPDIR']\nFalse\n{verdict_pipe_alone}\n"


async def test_privileges(sandbox: PythonSandbox) -> None:
    """The program is not root, holds no capability and cannot gain any."""
    code = (
        "import os\n"
        "fields = dict(line.split(':\\t') for line in open('/proc/self/status') if ':\\t' in line)\n"
        "print(os.getuid() != 0, os.geteuid() != 0, int(fields['CapPrm'], 16), int(fields['CapAmb'], 16),\n"
        "      fields['NoNewPrivs'].strip(), oct(os.umask(0)), os.getsid(0) == os.getpid())"
    )

    result = await run(sandbox, code)

    assert result.output == "True True 0 0 1 0o77 True\n"


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "", ".", "a\\..\\x", "a\0b", "//x"])
async def test_file_names_that_leave_the_directory(sandbox: PythonSandbox, name: str) -> None:
    """Such names are refused before anything starts."""
    result = await run(sandbox, "print('ran')", files={name: "text"})

    assert ToolOutcome.INVALID is result.outcome
    assert "relative path" in result.output


async def test_files_do_not_follow_links(sandbox: PythonSandbox, tmp_path: Path) -> None:
    """A name that means the same file twice fails instead of writing through what is there."""
    result = await run(sandbox, "print('ran')", files={"a": "1", "a/b": "2"})

    assert ToolOutcome.ERROR is result.outcome
    assert "ran" not in result.output


async def test_links_left_behind(sandbox: PythonSandbox, tmp_path: Path) -> None:
    """Clearing away follows no link that the program left, and copes with closed directories."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("keep")
    code = (
        "import os\n"
        f"os.symlink({str(precious)!r}, 'link'); os.makedirs('a/b/c'); open('a/b/c/f', 'w').close()\n"
        "os.chmod('a/b', 0); os.chmod('a', 0)"
    )

    result = await run(sandbox, code)

    assert ToolOutcome.OK is result.outcome
    assert (precious / "file").read_text() == "keep"


async def test_cancellation(sandbox: PythonSandbox) -> None:
    """A cancelled call ends the whole tree before it raises, within a second on an idle machine."""
    name = unique_name()
    code = RENAME.format(name=name) + "import os, time\nos.fork()\ntime.sleep(1000)"
    call = asyncio.create_task(run(sandbox, code))
    await eventually(lambda: len(process_ids_with(name)) == 2)
    began = time.monotonic()

    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    assert process_ids_with(name) == []
    assert time.monotonic() - began < 5
