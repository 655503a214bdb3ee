"""What the agent loops did, told to those who watch: metrics and server-sent events."""

from __future__ import annotations

from heddle.coordinator.broadcast import Broadcaster
from heddle.metrics import Metrics
from heddle.records import StepRecord, Trajectory


class RunWatcher:
    """Implements ``RunObserver``."""

    def __init__(self, metrics: Metrics, broadcaster: Broadcaster) -> None:
        self._metrics = metrics
        self._broadcaster = broadcaster

    def step_finished(self, step: StepRecord) -> None:
        self._metrics.step_finished(step)

    def trajectory_finished(self, trajectory: Trajectory) -> None:
        self._metrics.trajectory_finished(trajectory)
        self._broadcaster.publish(
            "trajectory.finished",
            {
                "trajectory_id": trajectory.trajectory_id,
                "batch_id": trajectory.batch_id,
                "environment": trajectory.environment,
                "status": trajectory.status,
                "stop_reason": trajectory.stop_reason,
                "steps": len(trajectory.steps),
                "sampled_tokens": trajectory.sampled_tokens,
                "reward": trajectory.reward,
                "wall_s": trajectory.timing.wall,
            },
        )
