"""What an agent loop writes down after each half-step, and reads to go on after a crash."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import orjson
from pydantic import TypeAdapter

from heddle.agent.clock import TimingParts
from heddle.records import PredictionRecord, StepRecord, ToolCallRecord, Trajectory
from heddle.store.gates import GateViolation
from heddle.types import Message, TrajectoryId

GENERATION = "generation"
OBSERVATION = "observation"


@dataclass(frozen=True, slots=True)
class GeneratedEntry:
    """A step's generation. Token arrays are those of the sampled tokens, of equal length."""

    step: StepRecord
    """Without its tool calls, which have not run yet."""
    forced_ids: list[int]
    token_ids: list[int]
    logprobs: list[float]
    weight_versions: list[int]
    prediction: PredictionRecord | None
    model: str
    prompt_checksum: int
    """Of the prompt's ids. A resumed trajectory must go on with the same model and the same prompt."""
    parts: TimingParts
    wall: float


@dataclass(frozen=True, slots=True)
class ObservedEntry:
    """What came of the step's tools, as appended to the context."""

    step_index: int
    tool_calls: list[ToolCallRecord]
    messages: list[Message]
    token_ids: list[int]
    invalid_in_a_row: int
    parts: TimingParts
    wall: float


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """The durable trace of one half-step, enough to go on from after a crash.

    ``kind`` is ``generation`` (the sampled ids, with the forced prefix before them) or ``observation``
    (appended ids). ``payload`` is the JSON that the agent loop wrote and alone understands.
    """

    trajectory_id: TrajectoryId
    attempt: int
    sequence: int
    """0, 1, 2 ... within the attempt."""
    kind: str
    payload: bytes


class Journal(Protocol):
    """Durable memory of trajectories; every call returns when the write is committed."""

    async def append(self, entry: JournalEntry) -> None: ...

    async def commit(self, trajectory: Trajectory, violations: Sequence[GateViolation] = ()) -> None:
        """Make a finished trajectory visible, exactly once. Raises ``StoreError``.

        With ``violations`` it stands for a record that was refused, and is entered into the quarantine too.
        """
        ...


_GENERATED: TypeAdapter[GeneratedEntry] = TypeAdapter(GeneratedEntry)
_OBSERVED: TypeAdapter[ObservedEntry] = TypeAdapter(ObservedEntry)


def encode_entry(entry: GeneratedEntry | ObservedEntry) -> bytes:
    """One JSON object."""
    return orjson.dumps(entry)


def decode_generated(payload: bytes) -> GeneratedEntry:
    """Raises ``pydantic.ValidationError`` on a foreign payload."""
    return _GENERATED.validate_json(payload)


def decode_observed(payload: bytes) -> ObservedEntry:
    """Raises ``pydantic.ValidationError`` on a foreign payload."""
    return _OBSERVED.validate_json(payload)
