"""What engines say of themselves while they work: how fast they decode, and how much of their prompts they
find in their caches. A worker that falls behind is told of, and what was measured becomes a profile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import structlog

from heddle.agent.ports import Engine
from heddle.coordinator.broadcast import Broadcaster
from heddle.errors import ConfigError, EngineError
from heddle.metrics import Metrics
from heddle.planning.pace import Pace, PaceMeter, profile_csv
from heddle.planning.profile import DegreeProfile, Profile
from heddle.types import EngineLoad, WorkerId

_log = structlog.get_logger(__name__)

EVERY_S = 2.0
"""Servers refresh what they tell every few steps; asking costs them nothing."""
ANSWER_S = 5.0
"""A load that comes later is not waited for: the supervisor looks after servers that hang."""
ROUNDS_PER_PROFILE = 30
"""Between two versions of the profile file."""


class MeasuredPool(Protocol):
    """The workers that are asked."""

    def engines(self) -> Mapping[WorkerId, Engine]: ...

    def tp_degree(self, worker_id: WorkerId) -> int: ...


class Telemetry:
    """Asks every engine that tells, at a fixed cadence. ``run`` once, from the task that is to own it."""

    def __init__(
        self,
        pool: MeasuredPool,
        metrics: Metrics,
        broadcaster: Broadcaster,
        *,
        expected: Profile | None,
        profile_path: Path,
    ) -> None:
        """``expected`` is what workers are held to, each to its own past where it is ``None``."""
        self._pool = pool
        self._metrics = metrics
        self._broadcaster = broadcaster
        self._expected = expected
        self._profile_path = profile_path
        self._meters: dict[WorkerId, PaceMeter] = {}
        self._degrees: dict[WorkerId, int] = {}

    def pace(self, worker_id: WorkerId) -> Pace | None:
        """The worker's speed; ``None`` where its engine does not tell."""
        meter = self._meters.get(worker_id)
        return None if meter is None else meter.pace

    async def run(self) -> None:
        """Runs until cancelled."""
        rounds = 0
        while True:
            await asyncio.sleep(EVERY_S)
            await self.look()
            rounds += 1
            if rounds % ROUNDS_PER_PROFILE == 0:
                await self.save_profile()

    async def look(self) -> None:
        """Ask every engine once, all at the same time."""
        telling = {w: e for w, e in self._pool.engines().items() if e.capabilities.step_times}
        async with asyncio.TaskGroup() as tasks:
            for worker_id, engine in telling.items():
                tasks.create_task(self._ask(worker_id, engine))

    async def save_profile(self) -> None:
        """Write what was measured where ``heddle plan --profile`` can read it."""
        text = profile_csv((self._degrees[worker_id], meter) for worker_id, meter in self._meters.items())
        if text:
            await asyncio.to_thread(_write, self._profile_path, text)

    async def _ask(self, worker_id: WorkerId, engine: Engine) -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                load = await engine.load()
        except (EngineError, TimeoutError):
            return  # the next round asks again
        self._take(worker_id, load)

    def _take(self, worker_id: WorkerId, load: EngineLoad) -> None:
        if load.cache_hit_rate is not None:
            self._metrics.cache_hit_rate(worker_id, load.cache_hit_rate)
        if load.decoding is None:
            return
        meter = self._meters.get(worker_id)
        if meter is None:
            degree = self._degrees[worker_id] = self._pool.tp_degree(worker_id)
            meter = self._meters[worker_id] = PaceMeter(_of_degree(self._expected, degree))
        before = meter.pace
        pace = meter.observe(load.decoding)
        if pace is not before:
            self._tell(worker_id, before, pace)

    def _tell(self, worker_id: WorkerId, before: Pace, pace: Pace) -> None:
        line = pace.line
        if line is not None:
            self._metrics.step_line(worker_id, line.base_s, line.per_generation_s)
        if pace.ratio is not None:
            self._metrics.pace(worker_id, pace.ratio, behind=pace.behind)
        if pace.behind is not before.behind:
            name = "worker.behind" if pace.behind else "worker.recovered"
            _log.warning(name, worker_id=worker_id, ratio=pace.ratio)
            self._broadcaster.publish(name, {"worker_id": worker_id, "ratio": pace.ratio})


def _of_degree(expected: Profile | None, tp_degree: int) -> DegreeProfile | None:
    if expected is None:
        return None
    try:
        return expected[tp_degree]
    except ConfigError:  # the profile was made for other degrees
        return None


def _write(path: Path, text: str) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)
