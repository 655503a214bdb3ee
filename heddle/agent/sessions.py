"""Which engines keep a trajectory's prefix for its next step, and telling them when there is none."""

from __future__ import annotations

import asyncio

import structlog

from heddle.agent.ports import Engine
from heddle.errors import EngineError
from heddle.types import TrajectoryId

CLOSE_DEADLINE_S = 10.0

log = structlog.get_logger(__name__)


class KeptSessions:
    """The sessions of one trajectory, one per engine that it generated on."""

    def __init__(self, trajectory_id: TrajectoryId) -> None:
        self.session_id = str(trajectory_id)
        self._engines: dict[int, Engine] = {}

    def note(self, engine: Engine) -> None:
        """It is about to generate here."""
        if engine.capabilities.sessions:
            self._engines[id(engine)] = engine

    async def close(self) -> None:
        """It has ended. An engine that does not hear of it only forgets the prefix later than it could."""
        for engine in self._engines.values():
            try:
                async with asyncio.timeout(CLOSE_DEADLINE_S):
                    await engine.close_session(self.session_id)
            except (EngineError, TimeoutError) as exc:
                log.info("session not closed", session=self.session_id, reason=str(exc))
        self._engines.clear()
