"""Progress of a batch on stderr: a bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from heddle.api.service import BatchStatus

LINE_INTERVAL_S = 10.0
"""Between two lines where stderr is not a terminal: enough to see life in a log, not to fill it."""


class BatchProgress(Protocol):
    """Shows how far a batch is."""

    def stage(self, text: str) -> None:
        """What is going on before there is a batch to look at."""
        ...

    def update(self, status: BatchStatus) -> None: ...


class SilentProgress:
    """Shows nothing."""

    def stage(self, text: str) -> None: ...

    def update(self, status: BatchStatus) -> None: ...


class BarProgress:
    """A bar with the trajectories by phase and the tokens per second."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task = bar.add_task("starting", total=None, detail="")

    def stage(self, text: str) -> None:
        self._bar.update(self._task, description=text)

    def update(self, status: BatchStatus) -> None:
        self._bar.update(
            self._task,
            description="trajectories",
            total=status.total,
            completed=status.finished,
            detail=describe(status, now=time.time()),
        )


class LineProgress:
    """One line now and then, for logs."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next = 0.0
        self._complete = False

    def stage(self, text: str) -> None:
        self._console.print(text)

    def update(self, status: BatchStatus) -> None:
        now = time.monotonic()
        complete = status.finished == status.total
        if self._complete or (now < self._next and not complete):
            return
        self._next = now + LINE_INTERVAL_S
        self._complete = complete
        detail = describe(status, now=time.time())
        self._console.print(f"{status.finished}/{status.total} trajectories finished, {detail}")


def describe(status: BatchStatus, *, now: float) -> str:
    """Phases, tokens and rate of a batch in one short text; ``now`` is seconds since the epoch."""
    elapsed_s = max((status.finished_at or now) - status.created_at, 1e-9)
    parts = [f"{count} {phase}" for phase, count in status.by_phase.items() if count]
    parts.append(f"{status.sampled_tokens:,} tokens, {status.sampled_tokens / elapsed_s:.0f}/s")
    if status.eta_s is not None:
        parts.append(f"about {status.eta_s:.0f} s left")
    return ", ".join(parts)


@contextmanager
def show_progress(*, silent: bool = False) -> Iterator[BatchProgress]:
    """The progress that fits stderr, while inside."""
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    if silent:
        yield SilentProgress()
    elif not console.is_terminal:
        yield LineProgress(console)
    else:
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[detail]}"),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=console) as bar:
            yield BarProgress(bar)
