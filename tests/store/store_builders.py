"""Builders of what a store is given."""

from __future__ import annotations

from heddle.agent.journal import JournalEntry
from heddle.records import StepRecord, Timing, ToolCallRecord, Trajectory
from heddle.store.ports import StoredBatch
from heddle.types import BatchId, FinishReason, Message, StopReason, TrajectoryId, TrajectoryStatus


def make_batch(batch_id: str = "b", total: int = 4) -> StoredBatch:
    """A batch as the coordinator adds it."""
    return StoredBatch(
        BatchId(batch_id), b'{"prompts":[1]}', total, created_at=1000.5, cancelled=False, finished_at=None
    )


def make_entry(
    trajectory_id: str = "b-g0-t0",
    *,
    attempt: int = 0,
    sequence: int = 0,
    kind: str = "generation",
    payload: bytes = b'{"ids":[1,2]}',
) -> JournalEntry:
    """One half-step."""
    return JournalEntry(TrajectoryId(trajectory_id), attempt, sequence, kind, payload)


def make_step(index: int, *, output_tokens: int = 3, constrained: bool = False) -> StepRecord:
    """A step with one tool call."""
    call = ToolCallRecord(
        call_id=f"c{index}",
        name="python",
        arguments={"code": "print(6 * 7)"},
        result="42\n",
        ok=True,
        outcome="ok",
        queue_s=0.0,
        cold_start_s=0.01,
        run_s=0.19,
    )
    return StepRecord(
        step_index=index,
        worker_id="w0",
        tp_degree=1,
        prompt_tokens=4 + 5 * index,
        cached_tokens=0,
        output_tokens=output_tokens,
        forced_tokens=0,
        finish_reason=FinishReason.STOP,
        weight_version=7,
        constrained=constrained,
        segments=1,
        preemptions=0,
        tool_calls=(call,),
        queue_s=0.1,
        prefill_s=0.2,
        decode_s=0.3,
    )


def make_trajectory(
    trajectory_id: str = "b-g0-t0",
    *,
    batch_id: str = "b",
    attempt: int = 0,
    steps: int = 2,
    reward: float = 1.0,
) -> Trajectory:
    """A completed trajectory: each step samples three tokens and is answered by two."""
    return Trajectory(
        trajectory_id=trajectory_id,
        batch_id=batch_id,
        group_id=f"{batch_id}-g0",
        prompt_id="p0",
        sample_index=0,
        attempt=attempt,
        environment="math",
        status=TrajectoryStatus.COMPLETED,
        stop_reason=StopReason.COMPLETED,
        failure=None,
        prompt_ids=[11, 12, 13, 14],
        response_ids=[21, 22, 23, 31, 32] * steps,
        response_mask=[1, 1, 1, 0, 0] * steps,
        response_logprobs=[-0.5, -0.25, -1.0, 0.0, 0.0] * steps,
        weight_versions=[7] * (5 * steps),
        steps=[make_step(index) for index in range(steps)],
        messages=[Message("user", "6 * 7?"), Message("assistant", "42")],
        reward=reward,
        reward_info={"expected": "42"},
        predictions=[],
        timing=Timing(queue=0.5, prefill=0.25, decode_base=1.0, tool_run=0.25, wall=2.0),
        metadata={"source": "unit"},
    )
