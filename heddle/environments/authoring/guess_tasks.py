"""Guessing games whose ranges grow from ten numbers to a thousand."""

from __future__ import annotations

import random

from heddle.types import Json

SEED = 5
COUNT = 40
SPANS = (10, 20, 50, 100, 200, 500, 1000)


def guess_tasks(seed: int = SEED) -> list[dict[str, Json]]:
    """The lines of ``guess.jsonl``."""
    rng = random.Random(seed)
    lines: list[dict[str, Json]] = []
    for number in range(1, COUNT + 1):
        low = rng.randint(0, 99)
        high = low + rng.choice(SPANS) - 1
        task: dict[str, Json] = {"low": low, "high": high, "secret": rng.randint(low, high)}
        lines.append({"prompt_id": f"guess-{number:03d}", "task": task})
    return lines
