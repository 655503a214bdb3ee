"""How fast each worker decodes when it has nobody else to serve: the best that was seen."""

from __future__ import annotations

from heddle.types import WorkerId

MIN_TOKENS = 8
"""Shorter generations say little about the time per token."""


class DecodeLedger:
    """Implements ``WorkerLedger``. The best rate so far stands in for the rate of a lone request, so the
    share called interference is a lower bound until a worker has once run alone."""

    def __init__(self) -> None:
        self._best: dict[WorkerId, float] = {}

    def observe_decode(self, worker_id: WorkerId, tokens: int, seconds: float) -> None:
        """``tokens`` came in ``seconds`` from the first to the last."""
        if tokens < MIN_TOKENS or seconds <= 0.0:
            return
        rate = seconds / (tokens - 1)
        self._best[worker_id] = min(rate, self._best.get(worker_id, rate))

    def decode_base_s(self, worker_id: WorkerId, tokens: int) -> float:
        return self._best.get(worker_id, 0.0) * max(0, tokens - 1)
