"""The end of a trajectory: record, admission gates, commit.

An infrastructure failure never carries a reward. A record that a gate refuses is committed as failed,
with the gates' findings, so that it is counted and never taken for a sample.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import structlog

from heddle.agent.clock import TrajectoryClock
from heddle.agent.link import Ending
from heddle.agent.order import LoopServices, TrajectoryOrder
from heddle.agent.ports import Reward
from heddle.agent.progress import Progress
from heddle.records import Failure, FailureKind, Trajectory
from heddle.store.gates import GateViolation, check
from heddle.types import StopReason, TrajectoryStatus

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """Everything that a run leaves behind."""

    order: TrajectoryOrder
    ending: Ending
    reward: Reward | None
    progress: Progress
    clock: TrajectoryClock


async def finish(services: LoopServices, run: FinishedRun) -> StopReason:
    """Record and commit. Returns the final stop reason. Raises ``StoreError``."""
    async with services.finishing:
        trajectory = _record(run)
        violations = check(trajectory, services.max_version_span)
        if violations:
            services.observer.record_refused(sorted({v.gate for v in violations}))
            trajectory = _refused(trajectory, violations)
        await services.journal.commit(trajectory, violations)
    services.observer.trajectory_finished(trajectory)
    return trajectory.stop_reason


def _record(run: FinishedRun) -> Trajectory:
    order, ending, reward, progress = run.order, run.ending, run.reward, run.progress
    return Trajectory(
        trajectory_id=order.trajectory_id,
        batch_id=order.batch_id,
        group_id=order.group_id,
        prompt_id=order.prompt.prompt_id,
        sample_index=order.sample_index,
        attempt=order.attempt,
        environment=order.prompt.environment.name,
        status=ending.reason.status,
        stop_reason=ending.reason,
        failure=_failure(ending),
        prompt_ids=list(order.prompt.prompt_ids),
        response_ids=progress.buffer.response_ids,
        response_mask=progress.buffer.response_mask,
        response_logprobs=progress.buffer.response_logprobs,
        weight_versions=progress.buffer.weight_versions,
        steps=list(progress.steps),
        messages=list(progress.messages),
        reward=None if reward is None else reward.value,
        reward_info={} if reward is None else dict(reward.info),
        predictions=list(progress.predictions),
        timing=run.clock.timing(),
        metadata=dict(order.prompt.metadata),
        sampling=order.sampling,
    )


def _failure(ending: Ending) -> Failure | None:
    if ending.reason.status is not TrajectoryStatus.FAILED:
        return None
    kind = FailureKind.DATA if ending.data_fault else FailureKind.INFRA
    return Failure(kind, ending.stage, ending.detail)


def _refused(trajectory: Trajectory, violations: list[GateViolation]) -> Trajectory:
    """What stands for a record that must not be admitted. JSON has no NaN: it must still be readable."""
    findings = "; ".join(f"{v.gate}: {v.message}" for v in violations)
    log.error("trajectory refused by admission gates", trajectory=trajectory.trajectory_id, gates=findings)
    return replace(
        trajectory,
        status=TrajectoryStatus.FAILED,
        stop_reason=StopReason.ENGINE_FAILED,
        failure=Failure(FailureKind.INFRA, "gate", findings),
        reward=None,
        reward_info={},
        response_logprobs=[p if math.isfinite(p) else 0.0 for p in trajectory.response_logprobs],
    )
