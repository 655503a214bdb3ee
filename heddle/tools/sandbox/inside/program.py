"""The program's own process: give up everything, then run the code as ``__main__``.

Order matters: limits first (they need no privilege to lower), then the user, then the capabilities. After
``confine`` returns, nothing in this process can be undone by the code that follows.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import types

from . import syscalls as sc
from .seccomp import filter_calls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .spec import Spec

OUT_OF_MEMORY = b"M"
"""What the verdict pipe carries when the code died of a ``MemoryError``."""

_LAST_WORDS_BYTES = 32 << 20
"""Address space that is freed up to print the traceback of a ``MemoryError``."""

CODE_NAME = "<code>"


def address_space_bytes() -> int:
    """Size of this process as RLIMIT_AS counts it; 0 where /proc is missing."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 0


def confine(spec: Spec, *, address_space: int, process_limit: int) -> None:
    """Lower the limits, become nobody in particular, and make sure that it stays so."""
    os.setsid()
    os.umask(0o077)
    cpu_s = max(1, int(spec["cpu_s"] + 0.999))
    memory = address_space + spec["memory_bytes"]
    limits = {
        resource.RLIMIT_CPU: (cpu_s, cpu_s + 1),
        resource.RLIMIT_AS: (memory, memory + _LAST_WORDS_BYTES),
        resource.RLIMIT_FSIZE: (spec["file_bytes"],) * 2,
        resource.RLIMIT_NOFILE: (spec["max_open_files"],) * 2,
        resource.RLIMIT_NPROC: (process_limit,) * 2,
        resource.RLIMIT_CORE: (0, 0),
        resource.RLIMIT_MSGQUEUE: (0, 0),
    }
    for kind, (soft, hard) in limits.items():
        ceiling = resource.getrlimit(kind)[1]
        if ceiling != resource.RLIM_INFINITY:
            soft, hard = min(soft, ceiling), min(hard, ceiling)
        resource.setrlimit(kind, (soft, hard))
    sc.forbid_new_privileges()
    if os.geteuid() == 0:
        _become(spec["uid"])
    sc.drop_capabilities()
    sc.set_dumpable(True)  # its own /proc/self stays usable; the supervisor's does not become so
    sc.die_with_parent(signal.SIGKILL)
    filter_calls()


def _become(uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def hold_library() -> dict[str, int]:
    """Open the directories that modules are imported from, as long as this process still may."""
    return {path: os.open(path, os.O_PATH) for path in sys.path if os.path.isdir(path)}


def reach_library(held: dict[str, int]) -> list[int]:
    """Where the new user cannot reach a held directory (an interpreter below /root), import through its
    descriptor instead. Returns the descriptors that must stay open."""
    lost = {path: fd for path, fd in held.items() if not os.access(path, os.R_OK)}

    def moved(path: str) -> str:
        for directory, fd in lost.items():
            if path == directory or path.startswith(directory + "/"):
                return f"/proc/self/fd/{fd}" + path[len(directory) :]
        return path

    if lost:
        sys.path[:] = [moved(path) for path in sys.path]
        for module in list(sys.modules.values()):
            if "__path__" in module.__dict__:
                module.__path__ = [moved(path) for path in module.__path__]
    return list(lost.values())


def run(spec: Spec, verdict_fd: int) -> int:
    """Write the files, execute the code, print what it died of. Returns the exit code."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # typed as TextIO, is a wrapper
    main = types.ModuleType("__main__")
    main.__dict__.update(exit=sys.exit, quit=sys.exit)  # what ``site`` would have provided
    sys.modules["__main__"] = main
    sys.argv = [CODE_NAME]
    os.environ.pop("PWD", None)  # bubblewrap's, and no longer true
    try:
        _write_files(spec["files"])
        _open_stdin(spec["stdin"])
        exec(compile(spec["code"], CODE_NAME, "exec"), main.__dict__)
    except SystemExit:
        raise
    except MemoryError as exc:
        os.write(verdict_fd, OUT_OF_MEMORY)
        _print_traceback(exc, spec["code"])
        return 1
    except BaseException as exc:
        _print_traceback(exc, spec["code"])
        return 1
    return 0


def _write_files(files: dict[str, str]) -> None:
    for name, text in files.items():
        folder = os.path.dirname(name)
        if folder:
            os.makedirs(folder, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with open(os.open(name, flags, 0o600), "w", encoding="utf-8") as file:
            file.write(text)


def _open_stdin(text: str) -> None:
    if text:
        fd = os.memfd_create("stdin")
        with open(fd, "w", encoding="utf-8", closefd=False) as file:
            file.write(text)
        os.lseek(fd, 0, os.SEEK_SET)
        os.dup2(fd, 0)
        os.close(fd)
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)


def _print_traceback(exc: BaseException, code: str) -> None:
    """As the interpreter would, with the source lines and without this module's frames."""
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    import linecache  # costs milliseconds, and only failures need it
    import traceback

    linecache.cache[CODE_NAME] = (len(code), None, code.splitlines(keepends=True), CODE_NAME)
    frames = exc.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    sys.stdout.flush()
    traceback.print_exception(type(exc), exc, frames)
