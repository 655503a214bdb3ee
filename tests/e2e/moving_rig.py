"""Replayed trajectories on two real engine processes inside this process's coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from heddle.api.schemas import BatchRequest
from heddle.config import HeddleConfig, parse_config
from heddle.coordinator.service import Coordinator
from heddle.records import MoveRecord, Trajectory, decode_trajectory
from heddle.types import Json

PROMPT_TOKENS = 90
DEADLINE_S = 200.0

Steps = Sequence[Mapping[str, Json]]
"""``{output_tokens, tool_seconds}``; no tool after the last."""


def configuration(data_dir: Path, *, slots: int = 1, **decisions: object) -> HeddleConfig:
    """Two workers of one thread."""
    engine = {"pool": "1+1", "slots": slots, "context_tokens": 512}
    return parse_config({"data_dir": data_dir, "engine": engine, "decisions": decisions})


def batch(steps: Steps, *, trajectories: int = 1) -> BatchRequest:
    """Each with its own prompt, at temperature 0."""
    tasks = [{"steps": [*steps], "prompt_tokens": PROMPT_TOKENS + n} for n in range(trajectories)]
    return BatchRequest.model_validate(
        {
            "environment": "replay",
            "prompts": [{"task": task} for task in tasks],
            "sampling": {"temperature": 0.0},
        }
    )


async def all_ready(coordinator: Coordinator) -> None:
    """Both workers are up."""
    async with asyncio.timeout(DEADLINE_S):
        while any(worker.phase != "ready" for worker in await coordinator.workers()):
            await asyncio.sleep(0.05)


async def records_of(coordinator: Coordinator, batch_id: str) -> list[Trajectory]:
    """Every record of a batch, by id, when it is over."""
    found: list[Trajectory] = []
    cursor: str | None = None
    async with asyncio.timeout(DEADLINE_S):
        while True:
            page = await coordinator.trajectories(batch_id, after=cursor, limit=100, wait_s=30.0)
            found += map(decode_trajectory, page.records)
            cursor = page.cursor
            if page.finished:
                return sorted(found, key=lambda record: record.trajectory_id)


def moves(record: Trajectory) -> list[MoveRecord]:
    """What was tried, in order."""
    return [step.migration for step in record.steps if step.migration is not None]
