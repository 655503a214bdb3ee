"""A circuit breaker per worker: generations that fail in a row, whatever its process says of its health."""

from __future__ import annotations

from collections import Counter

from heddle.types import WorkerId

FAILURES_BEYOND_SLOTS = 4
"""When a worker dies, as many generations fail at once as it has slots; it takes more than that."""


class CircuitBreaker:
    """Opens once for a worker whose failures in a row exceed its slots by ``FAILURES_BEYOND_SLOTS``."""

    def __init__(self) -> None:
        self._failures: Counter[WorkerId] = Counter()

    def succeeded(self, worker_id: WorkerId) -> None:
        """A generation came to its end there."""
        self._failures.pop(worker_id, None)

    def failed(self, worker_id: WorkerId, slots: int) -> bool:
        """A generation failed there; whether that opens the circuit: the worker is to be replaced."""
        self._failures[worker_id] += 1
        return self._failures[worker_id] == slots + FAILURES_BEYOND_SLOTS

    def closed(self, worker_id: WorkerId) -> None:
        """The worker was replaced, or is gone."""
        self._failures.pop(worker_id, None)
