"""Builders of records and statuses for the tests of the command line."""

from __future__ import annotations

from collections.abc import Sequence

from heddle.api.service import BatchStatus
from heddle.records import StepRecord, Timing, ToolCallRecord, Trajectory
from heddle.types import FinishReason, StopReason


def make_call(*, outcome: str = "ok") -> ToolCallRecord:
    """A call of ``python`` that ended with ``outcome``."""
    return ToolCallRecord(
        call_id="c0",
        name="python",
        arguments={"code": "print(1)"},
        result="1",
        ok=outcome == "ok",
        outcome=outcome,
        queue_s=0.0,
        cold_start_s=0.0,
        run_s=0.1,
    )


def make_step(index: int, *, calls: Sequence[ToolCallRecord] = ()) -> StepRecord:
    """A step that sampled 3 tokens on a prompt of 10, 4 of them cached."""
    return StepRecord(
        step_index=index,
        worker_id="w0",
        tp_degree=1,
        prompt_tokens=10,
        cached_tokens=4,
        output_tokens=3,
        forced_tokens=0,
        finish_reason=FinishReason.STOP,
        weight_version=0,
        constrained=False,
        segments=1,
        preemptions=0,
        tool_calls=tuple(calls),
        queue_s=0.0,
        prefill_s=0.1,
        decode_s=0.1,
    )


def make_trajectory(
    *,
    trajectory_id: str = "b-g0-t0",
    environment: str = "math",
    stop_reason: StopReason = StopReason.COMPLETED,
    reward: float | None = 1.0,
    steps: Sequence[StepRecord] | None = None,
) -> Trajectory:
    """A finished trajectory of one step (or the given ones) with 3 sampled tokens a step."""
    taken = [make_step(0)] if steps is None else list(steps)
    count = 3 * len(taken)
    return Trajectory(
        trajectory_id=trajectory_id,
        batch_id="b",
        group_id="b-g0",
        prompt_id="p0",
        sample_index=0,
        attempt=0,
        environment=environment,
        status=stop_reason.status,
        stop_reason=stop_reason,
        failure=None,
        prompt_ids=[1, 2],
        response_ids=[5] * count,
        response_mask=[1] * count,
        response_logprobs=[-0.5] * count,
        weight_versions=[0] * count,
        steps=taken,
        messages=[],
        reward=reward,
        reward_info={},
        predictions=[],
        timing=Timing(),
    )


def make_status(
    *,
    batch_id: str = "b",
    total: int = 2,
    finished: int = 0,
    state: str = "running",
    finished_at: float | None = None,
) -> BatchStatus:
    """A batch accepted at second 100."""
    return BatchStatus(
        batch_id=batch_id,
        state=state,
        total=total,
        finished=finished,
        by_status={"completed": finished},
        by_phase={"generating": total - finished},
        sampled_tokens=3 * finished,
        created_at=100.0,
        finished_at=finished_at,
        eta_s=None,
    )
