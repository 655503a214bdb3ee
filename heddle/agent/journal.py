"""What an agent loop writes down after each half-step, and reads to go on after a crash."""

from __future__ import annotations

from dataclasses import dataclass

import orjson
from pydantic import TypeAdapter

from heddle.agent.clock import TimingParts
from heddle.records import PredictionRecord, StepRecord, ToolCallRecord
from heddle.types import Message

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
