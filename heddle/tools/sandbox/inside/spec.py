"""The order that the coordinator gives a supervisor, as JSON. Types only: never imported inside."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

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


class Started(TypedDict):
    """First line of the report: the program is about to run. An instant of ``time.monotonic()``."""

    started: float


class Ended(TypedDict):
    """Last line of the report."""

    cause: Literal["exited", "wall", "stopped"]
    """``stopped``: the coordinator let go of the lifeline, on purpose or by dying."""
    exit_code: int | None
    signal: int | None
    out_of_memory: bool
    """The program died of a ``MemoryError``."""
    cpu_s: float
    max_rss_bytes: int
    survivors: NotRequired[int]
    """``rlimits``: processes that could not be ended."""


class Fault(TypedDict):
    """The report of a supervisor that could not do its work."""

    fault: str
