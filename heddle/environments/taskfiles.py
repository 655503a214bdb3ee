"""The tasks that ship with Heddle: one JSON object per line, ``{"prompt_id", "task"}``."""

from __future__ import annotations

import random
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

import orjson

from heddle.errors import NotFound
from heddle.types import Json


@dataclass(frozen=True, slots=True)
class TaskEntry:
    """One prompt of a task file; ``task`` is what its environment's ``reset`` takes."""

    prompt_id: str
    environment: str
    task: dict[str, Json]

    def as_prompt(self) -> dict[str, Json]:
        """The line of a mixed task file, and the prompt of a batch request."""
        return {"prompt_id": self.prompt_id, "environment": self.environment, "task": self.task}


def load_tasks(name: str, limit: int | None = None, seed: int | None = None) -> list[TaskEntry]:
    """The shipped tasks of the environment ``name``, in file order, or shuffled by ``seed``.

    Raises ``NotFound`` with the names that there are.
    """
    folder = _folder()
    known = sorted(entry.name.removesuffix(".jsonl") for entry in folder.iterdir())
    if name not in known:
        raise NotFound(f"no shipped tasks for {name!r}; there are: {', '.join(known)}")
    entries = [
        TaskEntry(prompt_id=line["prompt_id"], environment=name, task=line["task"])
        for line in map(orjson.loads, (folder / f"{name}.jsonl").read_bytes().splitlines())
    ]
    if seed is not None:
        random.Random(seed).shuffle(entries)
    return entries[:limit]


def _folder() -> Traversable:
    return files("heddle.environments") / "tasks"
