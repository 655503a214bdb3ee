"""Virtual time: what is due when. Ties are served in the order in which they were entered."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import TypeAlias

_Entry: TypeAlias = tuple[float, int, Callable[[], None]]


class Agenda:
    """The only clock of a simulation."""

    __slots__ = ("_due", "_entered", "now")

    def __init__(self) -> None:
        self.now = 0.0
        """Seconds since the start."""
        self._due: list[_Entry] = []
        self._entered = 0

    def at(self, time: float, call: Callable[[], None]) -> None:
        """Call at ``time``, or now if that has passed."""
        self._entered += 1
        heapq.heappush(self._due, (max(time, self.now), self._entered, call))

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Call ``seconds`` from now."""
        self.at(self.now + seconds, call)

    def advance(self) -> bool:
        """Go to what is due next and call it. False where nothing ever will be."""
        if not self._due:
            return False
        self.now, _, call = heapq.heappop(self._due)
        call()
        return True
