"""Ways out of the sandbox that programs have found elsewhere. Each prints ``OUT`` where it works."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandbox_tools import run

from heddle.tools.ports import ToolOutcome
from heddle.tools.sandbox import Isolation, PythonSandbox
from heddle.tools.sandbox.inside.seccomp import CLONE, CLONE3, DENIED, MACHINES, X86_64

PREPARE = """
import ctypes, os, resource, socket, time
libc = ctypes.CDLL(None, use_errno=True)
def attempt(action):
    try:
        result = action()
    except (OSError, ValueError):
        return
    if result not in (False, -1):
        print("OUT")
"""

PRIVILEGES = {
    "become root": "attempt(lambda: os.setuid(0))",
    "join a group": "attempt(lambda: os.setgroups([0]))",
    "mount": "attempt(lambda: libc.mount(b'none', b'/', b'tmpfs', 0, None))",
    "change the root": "attempt(lambda: os.chroot('/proc/1/root'))",
    "raise a limit": "attempt(lambda: resource.setrlimit(resource.RLIMIT_NPROC, (99999, 99999)))",
    "raw socket": "attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))",
    "packet socket": "attempt(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3))",
    "set the clock": "attempt(lambda: time.clock_settime(time.CLOCK_REALTIME, 0))",
    "name the host": "attempt(lambda: socket.sethostname('owned'))",
    "make a device": "attempt(lambda: os.mknod('disk', 0o60600, os.makedev(8, 0)))",
    "kernel settings": "attempt(lambda: open('/proc/sys/kernel/core_pattern', 'w'))",
    "kernel memory": "attempt(lambda: open('/dev/mem', 'rb'))",
    "memory of the supervisor": "attempt(lambda: open(f'/proc/{os.getppid()}/mem', 'r+b'))",
    "trace the supervisor": "attempt(lambda: libc.ptrace(16, os.getppid(), None, None))",
    "user namespace": "attempt(lambda: libc.unshare(0x10000000))",
    "environment of the supervisor": "attempt(lambda: open(f'/proc/{os.getppid()}/environ', 'rb').read())",
}
"""Refused in every mode."""

ORDINARY = """
import asyncio, mmap, os, socket, subprocess, threading
thread = threading.Thread(target=lambda: print(42, "thread", flush=True))
thread.start()
thread.join()
subprocess.run(["/bin/sh", "-c", "echo 42 program"], check=True)
shared = mmap.mmap(-1, 4096)
child = os.fork()
if child == 0:
    shared[:2] = b"42"
    os._exit(0)
os.waitpid(child, 0)
print(shared[:2].decode(), "fork", flush=True)
async def loop():
    left, right = socket.socketpair()
    left.setblocking(False)
    right.send(b"42")
    print((await asyncio.get_running_loop().sock_recv(left, 2)).decode(), "loop")
asyncio.run(loop())
"""

HOST = {
    "roots of other processes": (
        "for name in filter(str.isdigit, os.listdir('/proc')):\n"
        "    attempt(lambda: open(f'/proc/{name}/root' + SECRET))"
    ),
    "descriptors left open": (
        "for fd in os.listdir('/proc/self/fd'):\n    attempt(lambda: open(f'/proc/self/fd/{fd}/..' + SECRET))"
    ),
    "the coordinator in /proc": "attempt(lambda: open(f'/proc/{COORDINATOR}/environ', 'rb'))",
    "signal the coordinator": "attempt(lambda: os.kill(COORDINATOR, 0))",
    "abstract socket": "s = socket.socket(socket.AF_UNIX)\nattempt(lambda: s.connect('\\0' + ABSTRACT))",
    "loopback": "attempt(lambda: socket.create_connection(('127.0.0.1', PORT), 2))",
    "symbolic link": "os.symlink(SECRET, 'link')\nattempt(lambda: open('link'))",
    "hard link": "attempt(lambda: os.link(SECRET, 'hard'))",
    "bind mount by descriptor": "attempt(lambda: open('/proc/self/cwd/../../..' + SECRET))",
}
"""Refused wherever the isolation is complete."""


@pytest.mark.parametrize("name", PRIVILEGES)
async def test_no_privilege_can_be_gained(name: str, sandbox: PythonSandbox) -> None:
    """As nobody, without capabilities, for good."""
    result = await run(sandbox, PREPARE + PRIVILEGES[name])
    assert (result.output, result.outcome) == ("", ToolOutcome.OK)


@pytest.mark.skipif(os.uname().machine not in MACHINES, reason="no filter for this machine")
async def test_calls_that_no_program_needs_are_refused_by_the_kernel(sandbox: PythonSandbox) -> None:
    """Each by its number, by the one of another convention, and ``clone`` where it makes a user namespace."""
    machine, column = MACHINES[os.uname().machine]
    numbers = [calls[column] for calls in DENIED.values()]
    if machine == X86_64:
        numbers += [0x40000000 + number for number in (0, *numbers)]
    code = f"""
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
def refusal(number, first=0):
    result = libc.syscall(ctypes.c_long(number), ctypes.c_long(first), *[ctypes.c_long(0)] * 5)
    return ctypes.get_errno() if result == -1 else 0
for number in {numbers}:
    if refusal(number) != errno.EPERM:
        print(number, "is not refused")
assert refusal({CLONE[column]}, 0x10000000) == errno.EPERM
assert refusal({CLONE3[column]}) == errno.ENOSYS
"""
    result = await run(sandbox, code)
    assert (result.output, result.outcome) == ("", ToolOutcome.OK)


async def test_what_programs_need_is_not_refused(sandbox: PythonSandbox) -> None:
    """Threads, programs of their own, event loops, memory that is shared, pipes, sockets of their own."""
    result = await run(sandbox, ORDINARY)
    assert (result.output, result.outcome) == ("42 thread\n42 program\n42 fork\n42 loop\n", ToolOutcome.OK)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[str]:
    """Things of the host that everyone there may reach, as a preamble that names them."""
    secret = tmp_path / "secret"
    secret.write_text("s3cret")
    for directory in (tmp_path, *tmp_path.parents[:2]):
        os.chmod(directory, 0o755)
    abstract = f"heddle-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(f"\0{abstract}")
        unix.listen()
        port = listening.getsockname()[1]
        yield f"SECRET, COORDINATOR, ABSTRACT, PORT = {str(secret)!r}, {os.getpid()}, {abstract!r}, {port}\n"


@pytest.mark.parametrize("name", HOST)
async def test_nothing_of_the_host_can_be_reached(
    name: str, sandbox: PythonSandbox, isolation: Isolation, host: str
) -> None:
    """Files, processes, sockets, by any name."""
    if not isolation.complete:
        pytest.skip(f"{isolation.mode} does not claim to hide the host")
    result = await run(sandbox, PREPARE + host + HOST[name])
    assert (result.output, result.outcome) == ("", ToolOutcome.OK)


async def test_many_small_files_end_at_a_limit(sandbox: PythonSandbox, isolation: Isolation) -> None:
    """Each costs the host about a kilobyte that their sizes do not show."""
    if isolation.mode != "namespaces":
        pytest.skip("only there the number of files is bounded")
    code = (
        "made = 0\ntry:\n    while made < 20000:\n        open(str(made), 'w').close()\n        made += 1\n"
    )
    result = await run(sandbox, code + "except OSError as exc:\n    print(exc.strerror)")
    assert result.output == "No space left on device\n"
