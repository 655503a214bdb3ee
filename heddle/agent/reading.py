"""What models of length are told of a trajectory: its counts, and a digest of what was said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from heddle.predict.models.base import Example
from heddle.records import StepRecord, ToolCallRecord
from heddle.text.digest import digest
from heddle.types import Message, StepView, TrajectoryId


class ProgressReader(Protocol):
    """Told of every half-step. Must not raise and must not block."""

    def progressed(self, trajectory_id: TrajectoryId, example: Example) -> None:
        """The trajectory has come as far as ``example`` says."""
        ...


def example_of(
    prompt_ids: Sequence[int],
    steps: Sequence[StepRecord],
    messages: Sequence[Message],
    context_tokens: int,
    appended_tokens: int,
) -> Example:
    """The state after the last of ``steps``, which is never empty.

    ``appended_tokens`` are those of its observation; 0 while its tools run.
    """
    last = steps[-1]
    view = StepView(
        last.output_tokens,
        tuple(call.name for call in last.tool_calls),
        tuple(call.outcome for call in last.tool_calls),
        sum(map(_seconds, last.tool_calls)),
        appended_tokens,
    )
    return Example(
        steps_done=len(steps),
        generated_tokens=sum(step.output_tokens for step in steps),
        context_tokens=context_tokens,
        prompt_tokens=len(prompt_ids),
        last_step=view,
        tool_seconds=sum(_seconds(call) for step in steps for call in step.tool_calls),
        text=digest(messages),
    )


def _seconds(call: ToolCallRecord) -> float:
    return call.queue_s + call.cold_start_s + call.run_s
