"""Made-up trajectories for tests of predictors, played as batches that run side by side."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from heddle.control.ports import LengthPredictor
from heddle.predict.evaluation.recorded import RecordedPoint, RecordedTrajectory
from heddle.predict.evaluation.stream import Said, play
from heddle.types import StepView, TrajectoryId


def life(
    name: str, outputs: Sequence[int], *, prompt: str = "p", workload: str = "w", outcome: str = "ok"
) -> RecordedTrajectory:
    """One trajectory whose every step but the last called a tool that ended with ``outcome``."""
    points = [RecordedPoint(0, 0, 50)]
    for index, tokens in enumerate(outputs[:-1]):
        done = points[-1].generated_tokens + tokens
        step = StepView(tokens, ("tool",), (outcome,), 1.0, 10)
        points.append(RecordedPoint(index + 1, done, 50 + done + 10 * (index + 1), step, float(index + 1)))
    return RecordedTrajectory(
        TrajectoryId(name),
        prompt,
        workload,
        tuple(points),
        sum(outputs),
        len(outputs),
        float(len(outputs) - 1),
    )


def population(
    seed: int, count: int, *, scale: float = 1.0, samples: int = 4, workload: str = "w"
) -> list[RecordedTrajectory]:
    """Log-normal lengths: half of the variance is the prompt's, and a failing tool means as much again."""
    rng = random.Random(seed)
    lives = []
    for index in range(count):
        if index % samples == 0:
            prompt_factor = rng.lognormvariate(0.0, 0.5)
        failing = rng.random() < 0.3
        steps = rng.randint(3, 5) if failing else rng.randint(1, 3)
        step_tokens = 100.0 * scale * prompt_factor * rng.lognormvariate(0.0, 0.3)
        outputs = [max(1, round(step_tokens * rng.lognormvariate(0.0, 0.2))) for _ in range(steps)]
        lives.append(
            life(
                f"{workload}-{seed}-{index}",
                outputs,
                prompt=f"{seed}-{index // samples}",
                workload=workload,
                outcome="error" if failing else "ok",
            )
        )
    return lives


def marathons(seed: int, count: int) -> list[RecordedTrajectory]:
    """Steps like those of ``population``, but ten times as many, whatever the tools say."""
    rng = random.Random(seed)
    return [
        life(f"m-{seed}-{i}", [rng.randint(60, 200) for _ in range(rng.randint(12, 40))], prompt=f"m{i}")
        for i in range(count)
    ]


def stream(
    predictor: LengthPredictor, lives: Sequence[RecordedTrajectory], *, batch: int = 32
) -> Iterator[Said]:
    """All of them, in batches of so many."""
    for start in range(0, len(lives), batch):
        yield from play(predictor, lives[start : start + batch], {}, name=f"{lives[0].trajectory_id}/{start}")
