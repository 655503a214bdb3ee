"""SIGINT and SIGTERM as cancellation: the first asks, the second insists.

The first signal sets ``stop`` where a command looks at it, and otherwise cancels the command's task; the
second cancels in any case. Cancelling unwinds every context manager, so that engine processes, sandboxes
and sockets are released on the way out. A command may not take a cancellation for a signal: a task group
cancels, too, when something fails.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from heddle.cli.output import CommandFailed
from heddle.errors import HeddleError

T = TypeVar("T")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(slots=True)
class Interrupts:
    """What signals do to the command's task; ``stop`` may be set while it runs."""

    task: asyncio.Task[object]
    stop: asyncio.Event | None

    def received(self) -> None:
        """One signal came."""
        if self.stop is not None and not self.stop.is_set():
            self.stop.set()
        else:
            self.task.cancel()


@contextmanager
def interrupts(stop: asyncio.Event | None = None) -> Iterator[Interrupts]:
    """Handle the signals of the current task while inside."""
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("interrupts() needs a running task")
    state = Interrupts(task, stop)
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, state.received)
    try:
        yield state
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


def run_interruptible(command: Coroutine[object, object, T]) -> T:
    """Run a command to its result. Raises ``CommandFailed`` where an interruption ended it.

    A task group wraps what was raised inside it; of Heddle's own errors the first comes out bare.
    """
    try:
        return asyncio.run(command)
    except (asyncio.CancelledError, KeyboardInterrupt) as exc:
        raise CommandFailed("interrupted") from exc
    except BaseExceptionGroup as group:
        error = _first_heddle_error(group)
        if error is None:
            raise
        raise error from group


def _first_heddle_error(group: BaseExceptionGroup[BaseException]) -> HeddleError | None:
    for inner in group.exceptions:
        found = _first_heddle_error(inner) if isinstance(inner, BaseExceptionGroup) else inner
        if isinstance(found, HeddleError):
            return found
    return None
