"""What coordinator and supervisor say to each other. Types only: never imported inside.

The order is a ``Spec``, marshalled. The report is lines of text:

    started 1234.5                      the program is about to run, an instant of time.monotonic()
    ended cause=exited exit_code=0 ...  an ``Ended``, its values as str() gives them
    fault OSError: ...                  the sandbox could not be set up
"""

from __future__ import annotations

from typing import Literal, TypedDict

Mode = Literal["bubblewrap", "namespaces", "rlimits"]


class Spec(TypedDict):
    """One run. Sizes in bytes, times in seconds."""

    mode: Mode
    coordinator_pid: int
    """As the supervisor sees its parent; 0 where that is not the coordinator."""
    code: str
    stdin: str
    files: dict[str, str]
    """Relative path to text; the coordinator has checked the paths."""
    uid: int
    """Unprivileged user to become where the supervisor is root."""
    directory: str
    """``rlimits``: the working directory. ``namespaces``: where the new root is built."""
    visible: list[str]
    """``namespaces``: host paths that the program may read."""
    wall_s: float
    cpu_s: float
    memory_bytes: int
    file_bytes: int
    disk_bytes: int
    max_processes: int
    max_open_files: int


class Ended(TypedDict):
    """How a program ended."""

    cause: Literal["exited", "wall", "stopped"]
    """``stopped``: the coordinator let go of the lifeline, on purpose or by dying."""
    exit_code: int
    """-1 where it did not exit by itself."""
    signal: int
    """0 where no signal ended it."""
    out_of_memory: bool
    """The program died of a ``MemoryError``."""
    cpu_s: float
    max_rss_bytes: int
    survivors: int
    """``rlimits``: processes that could not be ended."""
