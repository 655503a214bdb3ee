"""The end of a trajectory: reward, record, admission gates, commit.

An infrastructure failure never carries a reward. A record that a gate refuses is committed as failed,
with the gates' findings, so that it is counted and never taken for a sample.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, replace

import structlog

from heddle.agent.clock import TrajectoryClock
from heddle.agent.faults import environment_ending
from heddle.agent.invoker import RecordingInvoker
from heddle.agent.link import Ending
from heddle.agent.order import LoopServices, TrajectoryOrder
from heddle.agent.ports import Episode, Reward
from heddle.agent.tokens import TokenBuffer
from heddle.records import Failure, FailureKind, PredictionRecord, StepRecord, Trajectory
from heddle.store.gates import check
from heddle.types import Message, StopReason, TrajectoryStatus

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """Everything that a run leaves behind."""

    order: TrajectoryOrder
    ending: Ending
    buffer: TokenBuffer
    messages: tuple[Message, ...]
    steps: tuple[StepRecord, ...]
    predictions: tuple[PredictionRecord, ...]
    clock: TrajectoryClock


async def finish(services: LoopServices, run: FinishedRun, *, reward_deadline_s: float) -> StopReason:
    """Judge, record and commit. Returns the final stop reason. Raises ``StoreError``."""
    ending, reward = await _judge(services, run, reward_deadline_s)
    async with services.finishing:
        trajectory = _gated(_record(run, ending, reward), greedy=run.order.sampling.temperature == 0.0)
        await services.journal.commit(trajectory)
    services.observer.trajectory_finished(trajectory)
    return trajectory.stop_reason


async def _judge(services: LoopServices, run: FinishedRun, deadline_s: float) -> tuple[Ending, Reward | None]:
    if run.ending.reason.status in (TrajectoryStatus.FAILED, TrajectoryStatus.ABORTED):
        return run.ending, None
    order = run.order
    episode = Episode(
        task=order.prompt.task,
        messages=run.messages,
        tool_calls=tuple(call for step in run.steps for call in step.tool_calls),
        stop_reason=run.ending.reason,
        steps=len(run.steps),
    )
    invoker = RecordingInvoker(services.tools, order.trajectory_id, order.attempt)
    started = run.clock.now()
    try:
        async with asyncio.timeout(deadline_s):
            return run.ending, await order.prompt.environment.reward(episode, invoker)
    except TimeoutError:
        detail = f"the reward took longer than {deadline_s:g} s"
        return Ending(StopReason.TOOL_FAILED, detail, stage="reward"), None
    except Exception as exc:  # the environment is the user's code: whatever it raises is its fault
        return environment_ending(exc, "reward"), None
    finally:
        run.clock.add_tools(invoker.results, run.clock.now() - started)


def _record(run: FinishedRun, ending: Ending, reward: Reward | None) -> Trajectory:
    order = run.order
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
        response_ids=run.buffer.response_ids,
        response_mask=run.buffer.response_mask,
        response_logprobs=run.buffer.response_logprobs,
        weight_versions=run.buffer.weight_versions,
        steps=list(run.steps),
        messages=list(run.messages),
        reward=None if reward is None else reward.value,
        reward_info={} if reward is None else dict(reward.info),
        predictions=list(run.predictions),
        timing=run.clock.timing(),
        metadata=dict(order.prompt.metadata),
    )


def _failure(ending: Ending) -> Failure | None:
    if ending.reason.status is not TrajectoryStatus.FAILED:
        return None
    kind = FailureKind.DATA if ending.data_fault else FailureKind.INFRA
    return Failure(kind, ending.stage, ending.detail)


def _gated(trajectory: Trajectory, *, greedy: bool) -> Trajectory:
    """The record, or what stands for it. JSON has no NaN: a refused record must still be readable."""
    violations = check(trajectory, greedy=greedy)
    if not violations:
        return trajectory
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
