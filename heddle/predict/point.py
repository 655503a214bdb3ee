"""One moment of a trajectory between two generations, as evidence is drawn from it."""

from __future__ import annotations

from typing import NamedTuple

from heddle.types import GroupId, StepView, TrajectoryId, TrajectoryView


class Point(NamedTuple):
    """What was known after ``steps_done`` steps. Counts of tokens, and of the last step its tools.

    A tuple, because a batch makes hundreds at once.
    """

    trajectory_id: TrajectoryId
    group_id: GroupId
    prompt_key: str | None
    steps_done: int
    generated_tokens: int
    context_tokens: int
    prompt_tokens: int
    tool_seconds: float
    """In all steps so far."""
    last_step: StepView

    @staticmethod
    def of(trajectory: TrajectoryView) -> Point:
        """The trajectory as it stands."""
        return Point(
            trajectory.trajectory_id,
            trajectory.group_id,
            trajectory.prompt_key,
            trajectory.steps_done,
            trajectory.generated_tokens,
            trajectory.context_tokens,
            trajectory.prompt_tokens,
            trajectory.tool_seconds,
            trajectory.last_step,
        )
