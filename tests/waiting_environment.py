"""An environment for tests of programs: an episode is one step, which takes as long as the task says."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from heddle.agent.ports import EnvironmentStart, Episode, Reward, StepOutcome, ToolInvoker, Turn
from heddle.types import Json, Message, StopReason


class WaitingEnvironment:
    """``{"seconds": 3600}`` waits until it is cancelled."""

    name = "waiting"

    def reset(self, task: Mapping[str, Json]) -> EnvironmentStart:
        """One message, no tools."""
        return EnvironmentStart(messages=(Message("user", "Say something."),), tools=())

    async def step(
        self, task: Mapping[str, Json], messages: Sequence[Message], turn: Turn, tools: ToolInvoker
    ) -> StepOutcome:
        """Wait, then end."""
        seconds = task["seconds"]
        assert isinstance(seconds, int)
        await asyncio.sleep(seconds)
        return StepOutcome(stop_reason=StopReason.COMPLETED)

    async def reward(self, episode: Episode, tools: ToolInvoker) -> Reward | None:
        """Nothing to judge."""
        return None
