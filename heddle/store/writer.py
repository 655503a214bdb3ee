"""The one writer thread: group commit behind awaitable writes.

Callers on the event loop hand a write over and await it; the thread takes whatever waits, lets ``apply``
put it into one transaction, and calls into the loop once, which wakes the callers, a few a turn. A caller
costs the loop one future and one queue entry; a transaction costs it a few callbacks.

A write that was handed over is made even where its caller is cancelled meanwhile. The queue holds at most
one write per waiting caller. If the thread dies, everyone who waits gets a ``StoreError``, and so does
everyone who comes later: nobody hangs.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TypeAlias

from heddle.errors import StoreError
from heddle.store.rules import Write, size_bytes

MAX_GROUP_WRITES = 64
"""Upper bound of one transaction; a larger one writes hardly faster."""
WAKES_PER_TURN = 8
"""Callers woken in one turn of the event loop. Each goes on for some tenths of a millisecond, and whoever
else is ready, such as a request for a status, waits for all of them."""
DIGEST_DEADLINE_S = 5.0
"""Longest wait for the loop to have served the callers of one group before those of the next are woken."""
MAX_GROUP_BYTES = 16 * 1024 * 1024
"""A group that has reached this is closed: SQLite holds a copy of it while it writes."""

Outcome: TypeAlias = bool | StoreError
"""True: written. False: it was there already. An error: refused, or the database failed."""

Apply: TypeAlias = Callable[[Sequence[Write]], Sequence[Outcome]]
"""Commits a group and says what became of each write, in order. Runs in the writer thread."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    write: Write
    outcome: asyncio.Future[bool]


class GroupWriter:
    """Owns the thread. Made, used and closed on one event loop."""

    def __init__(self, apply: Apply, *, gather_s: float) -> None:
        self._apply = apply
        self._gather_s = gather_s
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[_Waiting | None] = SimpleQueue()
        self._refusal: StoreError | None = None
        self._ended = self._loop.create_future()
        self._digested = threading.Event()
        self._digested.set()
        self._thread = threading.Thread(target=self._run, name="heddle-store-writer", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Writes handed over and not yet taken into a transaction."""
        return self._queue.qsize()

    async def write(self, write: Write) -> bool:
        """Returns when it is committed; False where the same was there already. Raises ``StoreError``."""
        if self._refusal is not None:
            raise StoreError(str(self._refusal)) from self._refusal
        waiting = _Waiting(write, self._loop.create_future())
        self._queue.put(waiting)
        return await waiting.outcome

    async def close(self) -> None:
        """Commit what is queued, then end the thread. May be called again."""
        if self._refusal is None:
            self._refusal = StoreError("the store is closed")
            self._queue.put(None)
        await asyncio.shield(self._ended)
        self._thread.join()  # its last act was to complete the future: nothing left to wait for

    # ------------------------------------------------------------------ in the writer thread

    def _run(self) -> None:
        group: list[_Waiting] = []
        try:
            while True:
                group, last = self._next_group()
                if group:
                    outcomes = self._apply([waiting.write for waiting in group])
                    self._digested.wait(DIGEST_DEADLINE_S)
                    self._digested.clear()
                    self._tell(self._wake, group, outcomes)
                if last:
                    self._tell(self._on_end, [], None)
                    return
        except Exception as exc:  # the thread's supervisor: whatever it was, the callers must hear of it
            self._tell(self._on_end, group, exc)

    def _next_group(self) -> tuple[list[_Waiting], bool]:
        """Wait for a write, then take all that wait. The flag is True where no more will come."""
        first = self._queue.get()
        if first is None:
            return [], True
        if self._gather_s > 0 and self._queue.qsize() < MAX_GROUP_WRITES:
            time.sleep(self._gather_s)
        group = [first]
        group_bytes = size_bytes(first.write)
        while len(group) < MAX_GROUP_WRITES and group_bytes < MAX_GROUP_BYTES:
            try:
                waiting = self._queue.get_nowait()
            except Empty:
                break
            if waiting is None:
                return group, True
            group.append(waiting)
            group_bytes += size_bytes(waiting.write)
        return group, False

    def _tell(self, callback: Callable[..., None], *args: object) -> None:
        with suppress(RuntimeError):  # the loop was closed before the store: nobody is left to be told
            self._loop.call_soon_threadsafe(callback, *args)

    # ------------------------------------------------------------------- on the event loop

    def _wake(self, group: Sequence[_Waiting], outcomes: Sequence[Outcome]) -> None:
        """The first few callers run in the next turn of the loop; the one after the last tells the thread."""
        _settle(group[:WAKES_PER_TURN], outcomes[:WAKES_PER_TURN])
        if len(group) > WAKES_PER_TURN:
            self._loop.call_soon(self._wake, group[WAKES_PER_TURN:], outcomes[WAKES_PER_TURN:])
        else:
            self._loop.call_soon(self._loop.call_soon, self._digested.set)

    def _on_end(self, unanswered: list[_Waiting], cause: Exception | None) -> None:
        if cause is not None:
            self._refusal = StoreError(f"the store's writer died: {cause}")
            self._refusal.__cause__ = cause
        while not self._queue.empty():
            waiting = self._queue.get_nowait()
            if waiting is not None:
                unanswered.append(waiting)
        refusal = self._refusal or StoreError("the store is closed")
        _settle(unanswered, [refusal] * len(unanswered))
        self._ended.set_result(None)


def _settle(group: Sequence[_Waiting], outcomes: Sequence[Outcome]) -> None:
    for waiting, outcome in zip(group, outcomes, strict=True):
        if waiting.outcome.done():  # its caller was cancelled; the write stands
            continue
        if isinstance(outcome, StoreError):
            waiting.outcome.set_exception(outcome)
        else:
            waiting.outcome.set_result(outcome)
