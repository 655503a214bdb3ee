"""A coordinator on data with open trajectories, in a process of its own, which ``recovery.py`` starts.

    python benchmarks/reopened.py DATA_DIR TRAJECTORIES STEPS

It imports what a coordinator needs and no more, because its start is measured.
"""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from chatter import speak

from heddle.api.schemas import BatchRequest
from heddle.app import open_coordinator
from heddle.config import HeddleConfig, parse_config
from heddle.coordinator.assembly import EngineKit
from heddle.coordinator.service import Coordinator
from heddle.engines.fake import FakeEngine, FakeLauncher, FakeModel
from heddle.garbage import young_only
from heddle.text.byte_tokenizer import TURN_END, ByteTokenizer

POLL_S = 0.01
DEADLINE_S = 300.0
CONTEXT_TOKENS = 1 << 20


@dataclass(frozen=True, slots=True)
class Load:
    """What is open when the coordinator dies."""

    trajectories: int
    steps: int
    """Committed by each."""

    def config(self, data_dir: Path) -> HeddleConfig:
        engine = {
            "kind": "fake",
            "pool": "1+1",
            "slots": max(1, self.trajectories),
            "context_tokens": CONTEXT_TOKENS,
        }
        return parse_config(
            {
                "data_dir": data_dir,
                "log_level": "error",
                "engine": engine,
                "environments": {"chatter": "chatter:ChatterEnvironment"},
            }
        )

    def batch(self) -> BatchRequest:
        tasks = [{"task": {"number": number, "steps": self.steps}} for number in range(self.trajectories)]
        return BatchRequest.model_validate(
            {
                "batch_id": "open",
                "environment": "chatter",
                "prompts": tasks,
                "limits": {"max_steps": 10_000, "max_tokens": 1 << 20, "max_tokens_per_step": 512},
            }
        )


def kit() -> EngineKit:
    """Under the name of the engine that ``heddle serve`` has, which goes on with its trajectories."""
    model = FakeModel(speak, end_of_turn_id=TURN_END, context_tokens=CONTEXT_TOKENS)
    return EngineKit(FakeLauncher(model=model), ByteTokenizer(), FakeEngine.capabilities, "fake")


async def until_all_are_in_tools(coordinator: Coordinator, load: Load) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while (await coordinator.batch("open")).by_phase != {"in_tool": load.trajectories}:
            await asyncio.sleep(POLL_S)


async def reopen(load: Load, data_dir: Path) -> None:
    """Tell in lines what was reached; garbage is collected as in ``heddle serve``."""
    print("opens", flush=True)
    with young_only():
        await _reach(load, data_dir)


async def _reach(load: Load, data_dir: Path) -> None:
    async with open_coordinator(load.config(data_dir), kit=kit()) as coordinator:
        print("accepts", flush=True)
        if load.trajectories:
            await until_all_are_in_tools(coordinator, load)
        print("back", flush=True)
        print(time.process_time(), flush=True)


if __name__ == "__main__":
    asyncio.run(reopen(Load(int(sys.argv[2]), int(sys.argv[3])), Path(sys.argv[1])))
