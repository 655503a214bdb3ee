"""Fixed records for the exporters; the golden files are made of them."""

from __future__ import annotations

from dataclasses import replace

from heddle.records import (
    Failure,
    FailureKind,
    MoveRecord,
    PredictionRecord,
    StepRecord,
    Timing,
    ToolCallRecord,
    Trajectory,
)
from heddle.types import CacheSources, FinishReason, Message, StopReason, ToolCall, TrajectoryStatus

_CALL = ToolCallRecord(
    call_id="call-0",
    name="python",
    arguments={"code": "print(6 * 7)"},
    result="42\n",
    ok=True,
    outcome="ok",
    queue_s=0.125,
    cold_start_s=0.25,
    run_s=0.5,
)


_MOVE = MoveRecord(
    "w0",
    "w1",
    "moved",
    0.25,
    moved_tokens=4,
    computed_tokens=2,
    nbytes=1024,
    sources=CacheSources(host=1, storage=3),
)


def _step(index: int, prompt: int, cached: int, output: int, calls: tuple[ToolCallRecord, ...]) -> StepRecord:
    return StepRecord(
        step_index=index,
        worker_id=f"w{index}",
        tp_degree=1 + index,
        prompt_tokens=prompt,
        cached_tokens=cached,
        output_tokens=output,
        forced_tokens=0,
        finish_reason=FinishReason.STOP,
        weight_version=3 + index,
        constrained=False,
        segments=1,
        preemptions=0,
        tool_calls=calls,
        queue_s=0.0625,
        prefill_s=0.125,
        decode_s=0.25,
        migration=_MOVE if calls else None,
    )


SOLVED = Trajectory(
    trajectory_id="b1-g0-t0",
    batch_id="b1",
    group_id="b1-g0",
    prompt_id="p0",
    sample_index=0,
    attempt=1,
    environment="math",
    status=TrajectoryStatus.COMPLETED,
    stop_reason=StopReason.COMPLETED,
    failure=None,
    prompt_ids=[101, 102, 103],
    response_ids=[201, 202, 203, 301, 302, 204, 205],
    response_mask=[1, 1, 1, 0, 0, 1, 1],
    response_logprobs=[-0.5, -0.1, -0.30000000000000004, 0.0, 0.0, -1.25, -1e-07],
    weight_versions=[3, 3, 3, 3, 3, 4, 4],
    steps=[_step(0, 3, 0, 3, (_CALL,)), _step(1, 8, 6, 2, ())],
    messages=[
        Message("system", "Answer with a number."),
        Message("user", "How much is 6 · 7?"),
        Message(
            "assistant",
            '<tool_call>{"name": "python"}</tool_call>',
            tool_calls=(ToolCall("call-0", "python", {"code": "print(6 * 7)"}),),
        ),
        Message("tool", "42\n", name="python", tool_call_id="call-0"),
        Message("assistant", "42"),
    ],
    reward=1.0,
    reward_info={"expected": 42, "parts": [1, None, {"exact": True}]},
    predictions=[PredictionRecord(0, 120.0, 120.0, 30.5, 400.0, "mean_by_step")],
    timing=Timing(
        queue=0.125,
        prefill=0.25,
        decode_base=0.25,
        interference=0.25,
        tool_queue=0.125,
        tool_cold=0.25,
        tool_run=0.5,
        coordinator=0.25,
        wall=2.0,
    ),
    metadata={"source": "drill", "tags": ["a", "b"]},
)
"""Two steps, one tool call, weights that changed on the way."""

WRONG = replace(
    SOLVED,
    trajectory_id="b1-g0-t1",
    sample_index=1,
    status=TrajectoryStatus.TRUNCATED,
    stop_reason=StopReason.MAX_TOKENS,
    response_ids=[201, 206],
    response_mask=[1, 1],
    response_logprobs=[-0.5, -2.0],
    weight_versions=[3, 3],
    steps=[_step(0, 3, 0, 2, ())],
    reward=0.0,
    reward_info={},
    predictions=[],
    metadata={},
)
"""Shorter, truncated, with a reward that really is 0."""

OTHER_PROMPT = replace(
    WRONG, trajectory_id="b1-g1-t0", group_id="b1-g1", prompt_id="p1", prompt_ids=[104], reward=0.5
)
"""A group of its own, with a shorter prompt."""

CRASHED = replace(
    WRONG,
    trajectory_id="b1-g1-t1",
    group_id="b1-g1",
    prompt_id="p1",
    status=TrajectoryStatus.FAILED,
    stop_reason=StopReason.ENGINE_FAILED,
    failure=Failure(FailureKind.INFRA, "generate", "the engine died 8 times"),
    reward=None,
)
"""The infrastructure's fault."""

UNJUDGED = replace(WRONG, trajectory_id="b1-g0-t2", sample_index=2, reward=None)
"""The environment had nothing to say."""

SILENT = replace(
    CRASHED,
    trajectory_id="b1-g1-t2",
    status=TrajectoryStatus.ABORTED,
    stop_reason=StopReason.CANCELLED,
    failure=None,
    response_ids=[],
    response_mask=[],
    response_logprobs=[],
    weight_versions=[],
    steps=[],
)
"""Cancelled before its first token."""

ALL = [SOLVED, WRONG, OTHER_PROMPT, CRASHED, UNJUDGED, SILENT]
