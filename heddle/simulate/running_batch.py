"""Generations that decode together: each iteration gives every one of them a token.

They all advance at once, so one count of iterations stands for all of them, and a heap holds the counts at
which they end. Joining, leaving and advancing by any number of iterations cost O(log n).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from heddle.simulate.curves import StepCurves
from heddle.simulate.request import Request


class RunningBatch:
    """Owned by one engine. Knows nothing of time but how long its iterations take."""

    __slots__ = ("_curves", "_iterations", "_joined", "_marks", "_members", "context_tokens")

    def __init__(self, curves: StepCurves) -> None:
        self._curves = curves
        self._members: dict[Request, None] = {}
        """In the order in which they joined."""
        self._marks: list[tuple[int, int, Request]] = []
        """Ends of members, and of some that left before theirs."""
        self._joined = 0
        self._iterations = 0
        self.context_tokens = 0
        """Of all members together."""

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._members)

    @property
    def mean_context(self) -> float:
        """Of the members; there must be some."""
        return self.context_tokens / len(self._members)

    @property
    def youngest(self) -> Request:
        """Who joined last; there must be somebody."""
        return next(reversed(self._members))

    def join(self, request: Request) -> None:
        """It has just sampled its first token, and wants more."""
        request.decoding = True
        request.start_mark = self._iterations
        request.finish_mark = self._iterations + request.output_tokens - 1
        self._members[request] = None
        self.context_tokens += request.context_tokens + 1
        self._joined += 1
        heapq.heappush(self._marks, (request.finish_mark, self._joined, request))

    def leave(self, request: Request) -> None:
        """It decodes no more, at its end or before."""
        del self._members[request]
        self.context_tokens -= request.context_tokens + self.tokens(request)
        request.decoding = False

    def advance(self, iterations: int) -> None:
        """So many iterations are over. Whoever is at its end must leave: see ``finished``."""
        self._iterations += iterations
        self.context_tokens += iterations * len(self._members)

    def finished(self) -> Request | None:
        """A member that is at its end."""
        if self._members and self.iterations_to_end() == 0:
            return self._marks[0][2]
        return None

    def iterations_to_end(self) -> int:
        """Until the first member is at its end; there must be members."""
        mark, _, request = self._marks[0]
        while not (request.decoding and request.finish_mark == mark):
            heapq.heappop(self._marks)
            mark, _, request = self._marks[0]
        return mark - self._iterations

    def tokens(self, request: Request) -> int:
        """Sampled by a member since it joined, its first token included."""
        return 1 + self._iterations - request.start_mark

    def seconds(self, iterations: int) -> float:
        """Of the next iterations, for these members."""
        return self._curves.seconds(len(self._members), self.mean_context, iterations)

    def iterations_within(self, seconds: float) -> float:
        """How many iterations, and what part of another, fit into ``seconds`` from now."""
        return self._curves.steps_within(len(self._members), self.mean_context, seconds)

    def added_s(self) -> float:
        """What giving each member a token adds to one pass over the weights."""
        step_s = self._curves.step_s(len(self._members), self.mean_context)
        return max(0.0, step_s - self._curves.weights_s)

    def clear(self) -> None:
        """All are gone at once."""
        for request in self._members:
            request.decoding = False
        self._members.clear()
        self._marks.clear()
        self.context_tokens = 0
