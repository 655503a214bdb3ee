"""``numbers``: the counts of a trajectory themselves, on a logarithmic scale."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from heddle.predict.buckets import Floats
from heddle.predict.point import Point
from heddle.predict.sources import Context, SilentSource


class Numbers(SilentSource):
    """Columns: steps, generated, context, prompt, last output, observation, last tool seconds, mean step."""

    name = "numbers"
    prior = (0.0,) * 8

    def fill(self, points: Sequence[Point], context: Context, rows: Floats) -> None:
        # One flat list: numpy reads it in half the time that it takes for tuples.
        flat = [
            number
            for p in points
            for step in (p.last_step,)
            for number in (
                p.steps_done,
                p.generated_tokens,
                p.context_tokens,
                p.prompt_tokens,
                step.output_tokens,
                step.appended_tokens,
                step.tool_seconds or 0.0,
            )
        ]
        counts = np.array(flat, dtype=np.float64).reshape(len(points), -1)
        np.log1p(counts, out=rows[:, :-1])
        np.subtract(rows[:, 1], rows[:, 0], out=rows[:, -1])
