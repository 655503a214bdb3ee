"""Workloads: what trajectories will do, recorded or made up, as the simulator plays it.

A step is one generation and the tools that follow it. Everything is counted, nothing is text. What was not
recorded but made up (tool times drawn from a distribution, groups drawn with replacement) is said in
``notes``, which every report repeats.
"""

from __future__ import annotations

from dataclasses import dataclass

from heddle.types import GroupId, TrajectoryId


@dataclass(frozen=True, slots=True)
class WorkStep:
    """One generation and the tools after it."""

    prompt_tokens: int
    """Appended to the context before the generation: the prompt itself at the first step."""
    output_tokens: int
    """Sampled; at least 1."""
    tool_names: tuple[str, ...] = ()
    """What was called after it; empty where the next generation follows without a tool."""
    tool_seconds: float | None = 0.0
    """From the call until the observation is there; ``None``: not recorded, and nothing may run it."""


@dataclass(frozen=True, slots=True)
class WorkTrajectory:
    """One trajectory from its prompt to its end; at least one step."""

    trajectory_id: TrajectoryId
    group_id: GroupId
    """Members of a group share their first prompt, and so its prefix in a cache."""
    steps: tuple[WorkStep, ...]
    arrival_s: float = 0.0
    """When it is submitted; all of one time form a batch."""

    @property
    def total_tokens(self) -> int:
        """Sampled tokens over all steps."""
        return sum(step.output_tokens for step in self.steps)


@dataclass(frozen=True, slots=True)
class Workload:
    """What one simulation plays."""

    name: str
    trajectories: tuple[WorkTrajectory, ...]
    notes: tuple[str, ...] = ()
    """What of it was not recorded, in words, for every report made of it."""

    @property
    def total_tokens(self) -> int:
        """Sampled tokens of all trajectories."""
        return sum(trajectory.total_tokens for trajectory in self.trajectories)

    @property
    def has_unknown_tool_times(self) -> bool:
        """Whether a tool time must be drawn before this can be played."""
        return any(s.tool_seconds is None for t in self.trajectories for s in t.steps)
