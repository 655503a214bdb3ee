"""Taking a trajectory up again: its journal, read entry by entry."""

from __future__ import annotations

from dataclasses import dataclass

from heddle.agent import journal
from heddle.agent.clock import TrajectoryClock
from heddle.agent.journal import JournalEntry
from heddle.agent.once import CallGuard
from heddle.agent.order import LoopServices, TrajectoryOrder
from heddle.agent.progress import Progress, turn_text
from heddle.agent.segment import SampledArrays
from heddle.errors import ConfigError, StoreError
from heddle.types import Message


@dataclass(frozen=True, slots=True)
class Resumption:
    """Brings everything that a loop owns to where the journal ends."""

    services: LoopServices
    order: TrajectoryOrder
    progress: Progress
    clock: TrajectoryClock
    calls: CallGuard

    def take(self, entry: JournalEntry) -> None:
        """Take the next entry over.

        Raises ``ConfigError`` where another model or another prompt would go on: their tokens do not mix.
        Raises ``StoreError`` that names an entry which is not what an agent loop writes.
        """
        try:
            self._take(entry)
        except ValueError as exc:  # of a validation, too
            raise StoreError(
                f"the journal of {entry.trajectory_id} cannot be read: entry {entry.sequence} of attempt "
                f"{entry.attempt} ({entry.kind}): {exc}"
            ) from exc

    def _take(self, entry: JournalEntry) -> None:
        match entry.kind:
            case journal.GENERATION:
                self._generation(journal.decode_generated(entry.payload))
            case journal.OBSERVATION:
                self._observation(journal.decode_observed(entry.payload))
            case journal.CALL_STARTED:
                self.calls.restore_started(journal.decode_started(entry.payload))
            case journal.CALL_FINISHED:
                self.calls.restore_finished(journal.decode_finished(entry.payload))
            case journal.RESUMED:
                pass
            case _:
                raise ValueError("of an unknown kind")

    def _generation(self, entry: journal.GeneratedEntry) -> None:
        checksum = self.progress.buffer.prompt_checksum
        if (entry.model, entry.prompt_checksum) != (self.services.model, checksum):
            raise ConfigError(
                f"{self.order.trajectory_id} was begun with model {entry.model} and another prompt or model "
                f"would go on with it (now: {self.services.model})"
            )
        sampled = SampledArrays(entry.token_ids, entry.logprobs, entry.weight_versions)
        message = entry.message or self._message(entry)
        self.progress.generated(entry.step, entry.forced_ids, sampled, message, entry.prediction)
        self.clock.parts, self.clock.earlier_wall = entry.parts, entry.wall

    def _message(self, entry: journal.GeneratedEntry) -> Message:
        """Read from the tokens, as entries of before have it."""
        text = turn_text(self.services.tokenizer, entry.forced_ids, entry.token_ids)
        calls = self.order.prompt.parser.parse(text, step_index=entry.step.step_index).calls
        return Message("assistant", text, tool_calls=calls)

    def _observation(self, entry: journal.ObservedEntry) -> None:
        if not self.progress.between:
            raise ValueError("an observation of no generation")
        self.progress.called(entry.tool_calls)
        if entry.migration is not None:
            self.progress.moved(entry.step_index, entry.migration)
        self.progress.observed(entry.token_ids, entry.messages)
        self.progress.invalid_in_a_row = entry.invalid_in_a_row
        self.calls.forget()
        self.clock.parts, self.clock.earlier_wall = entry.parts, entry.wall
