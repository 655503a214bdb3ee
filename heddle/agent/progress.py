"""How far a trajectory has come: tokens, transcript, steps. What a journal brings back after a crash.

Half-steps are taken over here, by the loop that makes them and by the one that reads them from a journal
alike: :meth:`Progress.generated` and :meth:`Progress.observed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from heddle.agent.order import PreparedPrompt
from heddle.agent.ports import Tokenizer
from heddle.agent.segment import SampledArrays
from heddle.agent.tokens import TokenBuffer
from heddle.records import MoveRecord, PredictionRecord, StepRecord, ToolCallRecord
from heddle.types import Message


class Progress:
    """Grows by one half-step after the other, and never shrinks."""

    __slots__ = ("between", "buffer", "invalid_in_a_row", "messages", "predictions", "steps", "tool_calls")

    def __init__(self, prompt: PreparedPrompt) -> None:
        self.buffer = TokenBuffer(prompt.prompt_ids)
        self.messages: list[Message] = list(prompt.messages)
        self.steps: list[StepRecord] = []
        self.predictions: list[PredictionRecord] = []
        self.tool_calls = 0
        """Asked for so far."""
        self.invalid_in_a_row = 0
        """Last steps without a valid call."""
        self.between = False
        """Whether the last step is generated but not yet observed."""

    def generated(
        self,
        step: StepRecord,
        forced_ids: Sequence[int],
        sampled: SampledArrays,
        message: Message,
        prediction: PredictionRecord | None,
    ) -> None:
        """The model's turn. Raises ``ValueError`` on arrays of unequal length."""
        self.buffer.append_given(forced_ids, step.weight_version)
        self.buffer.append_sampled(*sampled)
        self.steps.append(step)
        if prediction is not None:
            self.predictions.append(prediction)
        self.messages.append(message)
        self.tool_calls += len(message.tool_calls)
        self.between = True

    def called(self, tool_calls: Sequence[ToolCallRecord]) -> StepRecord:
        """What the calls of the last step came to; the step with them."""
        if tool_calls:
            self.steps[-1] = replace(self.steps[-1], tool_calls=tuple(tool_calls))
        return self.steps[-1]

    def moved(self, step_index: int, move: MoveRecord) -> None:
        """What became of a move that was tried during the tools of this step."""
        self.steps[step_index] = replace(self.steps[step_index], migration=move)

    def observed(self, token_ids: Sequence[int], messages: Sequence[Message]) -> None:
        """What is appended to the context for the model to go on from."""
        self.buffer.append_given(token_ids, self.steps[-1].weight_version)
        self.messages.extend(messages)
        self.between = False


def turn_text(tokenizer: Tokenizer, forced_ids: Sequence[int], token_ids: Sequence[int]) -> str:
    """Forced prefix and sampled text, without the token that ended it."""
    ids = [*forced_ids, *token_ids]
    if ids and ids[-1] in tokenizer.end_ids:
        ids.pop()
    return tokenizer.decode(ids)
