"""The three ways to run a program, from the strongest to the last resort, and what each needs to start."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from heddle.errors import ConfigError, ToolBackendError
from heddle.tools.sandbox.inside.namespaces import WORKING_DIRECTORY
from heddle.tools.sandbox.inside.spec import Mode, Spec
from heddle.tools.sandbox.limits import SandboxLimits
from heddle.tools.sandbox.process import Launched, launch

MODES: tuple[Mode, ...] = ("bubblewrap", "namespaces", "rlimits")
"""Strongest first."""

FIRST_UID = 0x60000000
"""Programs started by root run as users from here on, far above any that an installation gives out."""

FIRST_UID_IN_CONTAINER = 61000
"""The same where a container maps its first 65536 users only; one coordinator a container is assumed."""

UIDS_PER_COORDINATOR = 128
"""Consecutive runs of one coordinator get different users; more than that at once would share some."""


@dataclass(frozen=True, slots=True)
class Program:
    """What to run. ``files`` maps relative paths, already checked, to their text."""

    code: str
    stdin: str
    files: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python interpreter outside of any virtual environment, and the host paths that it needs."""

    executable: Path
    visible: tuple[str, ...]


def this_interpreter() -> Interpreter:
    """The interpreter that runs Heddle, without its virtual environment."""
    return Interpreter(Path(sys.executable).resolve(), _visible_paths(Path(sys.base_prefix)))


def find_interpreter(executable: Path) -> Interpreter:
    """Ask another interpreter where it lives. Raises ``ConfigError`` where it does not run."""
    command = [str(executable.resolve()), "-I", "-S", "-c", "import sys; print(sys.base_prefix)"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError) as exc:
        raise ConfigError(f"{executable} is not a working Python interpreter: {exc}") from exc
    return Interpreter(executable.resolve(), _visible_paths(Path(done.stdout.strip())))


def _visible_paths(prefix: Path) -> tuple[str, ...]:
    """System libraries, and of the interpreter's prefix only what it runs from."""
    system = [Path(path) for path in ("/usr", "/lib", "/lib32", "/lib64", "/bin")]
    settings = [Path(path) for path in ("/etc/ld.so.cache", "/etc/localtime")]
    own = [] if prefix.is_relative_to("/usr") else [prefix / part for part in ("bin", "lib", "lib64")]
    directories = [path for path in (*system, *own) if path.is_dir() and not path.is_symlink()]
    return tuple(str(path) for path in (*directories, *(path for path in settings if path.is_file())))


class Launcher:
    """Starts programs in one mode. Holds no process: whoever launches owns what comes back."""

    def __init__(self, mode: Mode, interpreter: Interpreter, limits: SandboxLimits) -> None:
        self._mode = mode
        self._interpreter = interpreter
        self._limits = limits
        self._runs = count()
        self._first_uid = first_uid(os.getpid(), Path("/proc/self/uid_map").read_text(encoding="ascii"))

    @property
    def needs_directory(self) -> bool:
        """Whether each run needs an empty host directory of its own."""
        return self._mode == "rlimits"

    def start(self, program: Program, directory: Path, wall_s: float) -> Launched:
        """Start ``program``. ``directory`` is the run's own where ``needs_directory``, else any that this
        process may mount over in a namespace of its own. Raises ``ToolBackendError``."""
        spec = self._spec(program, directory, wall_s)
        wrapper = self._bubblewrap if self._mode == "bubblewrap" else _no_wrapper
        home, temporary = (str(directory),) * 2 if self.needs_directory else (WORKING_DIRECTORY, "/tmp")
        return launch(wrapper, self._interpreter.executable, spec, home, temporary)

    def _spec(self, program: Program, directory: Path, wall_s: float) -> Spec:
        limits = self._limits
        return {
            "mode": self._mode,
            "coordinator_pid": os.getpid(),
            "code": program.code,
            "stdin": program.stdin,
            "files": dict(program.files),
            "uid": self._first_uid + next(self._runs) % UIDS_PER_COORDINATOR,
            "directory": WORKING_DIRECTORY if self._mode == "bubblewrap" else str(directory),
            "visible": list(self._interpreter.visible),
            "wall_s": wall_s,
            "cpu_s": limits.cpu_s,
            "memory_bytes": limits.memory_bytes,
            "file_bytes": limits.file_bytes,
            "disk_bytes": limits.disk_bytes,
            "max_processes": limits.max_processes,
            "max_open_files": limits.max_open_files,
        }

    def _bubblewrap(self, info_fd: int) -> list[str]:
        """As root without a user namespace, which would map the program to root; the supervisor keeps just
        what it needs to become another user."""
        executable = shutil.which("bwrap")
        if executable is None:
            raise ToolBackendError("bubblewrap (bwrap) is not installed")
        command = [executable, "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
        command += ["--info-fd", str(info_fd)]
        command += ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
        if os.geteuid() == 0:
            command += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        else:
            command += ["--unshare-user"]
        command += ["--proc", "/proc", "--dev", "/dev"]
        for place, share in ((WORKING_DIRECTORY, 2), ("/tmp", 4), ("/dev/shm", 4)):
            size = max(4096, self._limits.disk_bytes // share)
            command += ["--perms", "1777", "--size", str(size), "--tmpfs", place]
        shown = (*self._interpreter.visible, str(Path(__file__).parent))
        for parent in _parents(shown):  # else bwrap makes them for root alone
            command += ["--perms", "0755", "--dir", parent]
        for path in shown:  # after /tmp, which an interpreter may lie below
            command += ["--ro-bind", path, path]
        for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
            link = Path("/", name)
            if link.is_symlink():
                command += ["--symlink", str(link.readlink()), str(link)]
        return [*command, "--remount-ro", "/dev", "--remount-ro", "/", "--"]


def _no_wrapper(info_fd: int) -> list[str]:
    return []


def _parents(paths: Sequence[str]) -> list[str]:
    """Every directory above these paths, each after its own parent."""
    found = {str(parent) for path in paths for parent in Path(path).parents}
    return sorted(found - {"/"})


def first_uid(coordinator_pid: int, uid_map: str) -> int:
    """The first of the users for the programs of this coordinator; other coordinators have others.

    ``uid_map`` is the text of ``/proc/self/uid_map``.
    """
    first = FIRST_UID + coordinator_pid % (1 << 22) * UIDS_PER_COORDINATOR
    for line in uid_map.splitlines():
        start, _, length = (int(word) for word in line.split())
        if start <= first and first + UIDS_PER_COORDINATOR <= start + length:
            return first
    return FIRST_UID_IN_CONTAINER
