"""Where simulated tools run: a number of places, first come, first served, in sandboxes that may be cold."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from heddle.simulate.agenda import Agenda
from heddle.simulate.options import ToolModel


@dataclass(frozen=True, slots=True)
class ToolTimes:
    """Where the seconds of one call went."""

    queue_s: float
    cold_s: float
    run_s: float


@dataclass(slots=True, eq=False)
class ToolRun:
    """One call between its request and its end."""

    seconds: float
    done: Callable[[ToolTimes], None]
    asked_at: float
    begun: bool = False
    began_at: float = 0.0
    cold_s: float = 0.0
    cancelled: bool = False


class ToolPool:
    """Serves calls in the order in which they come."""

    def __init__(self, agenda: Agenda, model: ToolModel) -> None:
        self._agenda = agenda
        self._model = model
        self._running = 0
        self._waiting: deque[ToolRun] = deque()
        self._warm = [0.0] * model.prewarmed
        """Since when each idle sandbox has been idle; the one used last is at the end."""

    def run(self, seconds: float, done: Callable[[ToolTimes], None]) -> ToolRun:
        """Call ``done`` when a tool of this duration is over."""
        run = ToolRun(seconds, done, self._agenda.now)
        if self._model.concurrency is None or self._running < self._model.concurrency:
            self._begin(run)
        else:
            self._waiting.append(run)
        return run

    def cancel(self, run: ToolRun) -> ToolTimes:
        """Nobody waits for it any more. Returns where its time went so far.

        One that runs keeps its place until it is over.
        """
        run.cancelled = True
        now = self._agenda.now
        if not run.begun:
            return ToolTimes(now - run.asked_at, 0.0, 0.0)
        cold_s = min(run.cold_s, now - run.began_at)
        return ToolTimes(run.began_at - run.asked_at, cold_s, now - run.began_at - cold_s)

    def _begin(self, run: ToolRun) -> None:
        self._running += 1
        run.begun = True
        run.began_at = self._agenda.now
        run.cold_s = 0.0 if self._take_warm() else self._model.cold_start_s
        self._agenda.after(run.cold_s + run.seconds, partial(self._end, run))

    def _take_warm(self) -> bool:
        """The sandbox used last: it is the one most likely to be warm still."""
        if not self._warm:
            return False
        idle_since = self._warm.pop()
        if self._agenda.now - idle_since <= self._model.keep_warm_s:
            return True
        self._warm.clear()  # all others have been idle for longer
        return False

    def _end(self, run: ToolRun) -> None:
        self._running -= 1
        if self._model.cold_start_s:
            self._warm.append(self._agenda.now)
        while self._waiting:
            following = self._waiting.popleft()
            if not following.cancelled:
                self._begin(following)
                break
        if not run.cancelled:
            queue_s = run.began_at - run.asked_at
            run.done(ToolTimes(queue_s, run.cold_s, self._agenda.now - run.began_at - run.cold_s))
