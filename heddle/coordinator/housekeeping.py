"""The coordinator's own pulse: how late the event loop runs, gauges, and the control plane's invariants."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import structlog

from heddle.control.plane import ControlPlane
from heddle.coordinator.watchdog import Watchdog
from heddle.metrics import Metrics
from heddle.store.ports import Store, StoreStats

log = structlog.get_logger(__name__)

TICK_S = 0.5
"""Between two measurements of the loop's lag."""

TICKS_PER_CHECK = 10
"""Invariants are checked this seldom: a check visits every trajectory."""

MOST_CHECKED = 5_000
"""With more open trajectories a check would hold up the loop for tens of milliseconds; replay checks them."""


class MoveMeter:
    """Tells what the control plane decided of moves and of the pool's shape since it was last asked."""

    def __init__(self, plane: ControlPlane, metrics: Metrics) -> None:
        self._plane = plane
        self._metrics = metrics
        self._moves: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._reshapes: Counter[str] = Counter()

    def read(self) -> None:
        """Add what is new to the metrics."""
        state = self._plane.state
        moves, refused = Counter[str](state.moves), Counter[str](state.moves_refused)
        self._metrics.moves_decided(
            moves - self._moves, refused - self._refused, self._plane.transfer_rate.tokens_per_s()
        )
        self._moves, self._refused = moves, refused
        reshapes = Counter[str](state.shape.outcomes)
        self._metrics.reshapes_ended(reshapes - self._reshapes, state.shape.start_s)
        self._reshapes = reshapes


async def keep_house(
    plane: ControlPlane, store: Store, watchdog: Watchdog, metrics: Metrics, now: Callable[[], float]
) -> None:
    """Runs until cancelled. Raises ``InvariantViolation``: a wrong state must not go on deciding."""
    tick = 0
    counted, moves = StoreStats(), MoveMeter(plane, metrics)
    while True:
        due = now() + TICK_S
        await asyncio.sleep(TICK_S)
        metrics.event_loop_lag(max(0.0, now() - due))
        for view in plane.worker_views():
            metrics.worker_load(
                view.worker_id, running=view.running, waiting=view.waiting, resident=view.resident
            )
        stats = store.stats
        metrics.store_worked(
            late=stats.late - counted.late,
            conflicting=stats.conflicting - counted.conflicting,
            full_disks=stats.full_disks - counted.full_disks,
            waiting=stats.waiting,
        )
        counted = stats
        moves.read()
        metrics.predictions_judged(plane.predictor.trust())
        tick += 1
        if tick % TICKS_PER_CHECK == 0 and len(plane.state.trajectories) <= MOST_CHECKED:
            plane.state.check_invariants()
            watchdog.look()
