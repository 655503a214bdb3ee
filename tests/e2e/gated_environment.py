"""An environment for tests of whole servers: after one generation its tool runs until a gate opens.

The tool is a real program in the real sandbox, with a child of its own. The gate is a file on the host, so
that a test decides when a trajectory may end, even after the coordinator was started anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from heddle.agent.ports import EnvironmentStart, Episode, Reward, StepOutcome, ToolInvoker, Turn
from heddle.types import Json, Message, StopReason, ToolCall

ENDLESS = "import os, time\nos.fork()\ntime.sleep(3600)"
QUICK = "print('the gate is open')"
TIMEOUT_S = 3600.0


class GatedEnvironment:
    """``{"gate": "/path"}``: the tool ends at once where this file exists when it starts."""

    name = "gated"

    def reset(self, task: Mapping[str, Json]) -> EnvironmentStart:
        """One message, no tools: the call does not depend on what the model says."""
        return EnvironmentStart(messages=(Message("user", "Say something."),), tools=())

    async def step(
        self, task: Mapping[str, Json], messages: Sequence[Message], turn: Turn, tools: ToolInvoker
    ) -> StepOutcome:
        """Run the program, then end."""
        is_open = await asyncio.to_thread(Path(str(task["gate"])).exists)
        call = ToolCall(f"gated-{turn.step_index}", "python", {"code": QUICK if is_open else ENDLESS})
        await tools.invoke(call, backend="python", timeout_s=TIMEOUT_S)
        return StepOutcome(stop_reason=StopReason.TOOL_STOPPED)

    async def reward(self, episode: Episode, tools: ToolInvoker) -> Reward | None:
        """Nothing to judge."""
        return None
