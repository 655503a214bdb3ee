"""What the agent loops did, told to those who watch: metrics and server-sent events."""

from __future__ import annotations

from collections.abc import Sequence

from heddle.coordinator.broadcast import Broadcaster
from heddle.metrics import Metrics
from heddle.records import MoveRecord, StepRecord, Trajectory
from heddle.tools.manager import LATE, ToolObservation


class RunWatcher:
    """Implements ``RunObserver``."""

    def __init__(self, metrics: Metrics, broadcaster: Broadcaster) -> None:
        self._metrics = metrics
        self._broadcaster = broadcaster

    def tool_finished(self, call: ToolObservation) -> None:
        """For the Tool Manager's hook."""
        if call.outcome == LATE:
            self.came_late("tool")
        else:
            self._metrics.tool_finished(call.name, call.outcome, run_s=call.run_s, queue_s=call.queue_s)

    def came_late(self, what: str) -> None:
        self._metrics.came_late(what)

    def step_finished(self, step: StepRecord) -> None:
        self._metrics.step_finished(
            sampled_tokens=step.output_tokens,
            prompt_tokens=step.prompt_tokens,
            cached_tokens=step.cached_tokens,
            generate_s=step.prefill_s + step.decode_s,
            preemptions=step.preemptions,
        )
        self._metrics.queue_wait(step.queue_s)

    def transfer_ended(self, move: MoveRecord) -> None:
        """For the transfer desk's hook."""
        self._metrics.transfer_ended(move.outcome, seconds=move.seconds, moved_tokens=move.moved_tokens)

    def record_refused(self, gates: Sequence[str]) -> None:
        for gate in gates:
            self._metrics.quarantined(gate)

    def trajectory_finished(self, trajectory: Trajectory) -> None:
        self._metrics.trajectory_finished(trajectory.status)
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
