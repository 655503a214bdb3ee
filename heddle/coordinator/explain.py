"""What trajectories and batches wait for, in the words of the REST surface."""

from __future__ import annotations

from collections.abc import Sequence

from heddle.api.service import BatchExplanation, Explanation, WaitingGroup
from heddle.control import queries
from heddle.control.queries import ControlExplanation


def finished_explanation(trajectory_id: str) -> Explanation:
    """Of a trajectory that waits for nothing any more."""
    return Explanation(trajectory_id, "finished", None, 0.0, "finished; its record is stored", None)


def explanation(found: ControlExplanation) -> Explanation:
    """Of an open trajectory."""
    return Explanation(
        trajectory_id=found.trajectory_id,
        phase=found.phase,
        worker_id=found.worker_id,
        since_s=found.since_s,
        reason=found.reason,
        queue_position=found.queue_position,
    )


def batch_explanation(batch_id: str, state: str, groups: Sequence[queries.WaitingGroup]) -> BatchExplanation:
    """Of a batch whose open trajectories stand in these groups, the longest wait first."""
    waiting = [
        WaitingGroup(
            phase=group.phase,
            worker_id=group.worker_id,
            trajectories=group.trajectories,
            longest_s=group.longest_s,
            example=group.first.trajectory_id,
            reason=group.first.reason,
        )
        for group in groups
    ]
    open_trajectories = sum(group.trajectories for group in waiting)
    return BatchExplanation(batch_id, state, open_trajectories, _summary(open_trajectories, waiting), waiting)


def _summary(open_trajectories: int, waiting: Sequence[WaitingGroup]) -> str:
    if not waiting:
        return "it waits for nothing; no trajectory is open"
    by_phase: dict[str, int] = {}
    for group in waiting:
        by_phase[group.phase] = by_phase.get(group.phase, 0) + group.trajectories
    phases = ", ".join(f"{count} {phase.replace('_', ' ')}" for phase, count in by_phase.items())
    longest = waiting[0]
    return (
        f"{open_trajectories} open: {phases}; longest {longest.example}, for {longest.longest_s:.1f} s: "
        f"{longest.reason}"
    )
