"""What an agent loop writes down after each half-step, and reads to go on after a crash."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol, TypeAlias

from pydantic import TypeAdapter

from heddle.agent.clock import TimingParts
from heddle.agent.packed import PackedFloats, PackedIds, VersionRuns, pack, unpack
from heddle.agent.ports import ToolResult
from heddle.records import MoveRecord, PredictionRecord, StepRecord, ToolCallRecord, Trajectory
from heddle.store.gates import GateViolation
from heddle.types import Message, TrajectoryId

GENERATION = "generation"
OBSERVATION = "observation"
CALL_STARTED = "call_started"
CALL_FINISHED = "call_finished"
RESUMED = "resumed"


@dataclass(frozen=True, slots=True)
class GeneratedEntry:
    """A step's generation. Token arrays are those of the sampled tokens, of equal length."""

    step: StepRecord
    """Without its tool calls, which have not run yet."""
    forced_ids: list[int]
    token_ids: PackedIds
    logprobs: PackedFloats
    weight_versions: VersionRuns
    prediction: PredictionRecord | None
    model: str
    prompt_checksum: int
    """Of the prompt's ids. A resumed trajectory must go on with the same model and the same prompt."""
    parts: TimingParts
    wall: float
    message: Message | None = None
    """The turn as decoded and parsed; ``None`` in entries of before, which leave both to their reader."""


@dataclass(frozen=True, slots=True)
class ObservedEntry:
    """What came of the step's tools, as appended to the context."""

    step_index: int
    tool_calls: list[ToolCallRecord]
    messages: list[Message]
    token_ids: PackedIds
    invalid_in_a_row: int
    parts: TimingParts
    wall: float
    migration: MoveRecord | None = None


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """The durable trace of one half-step, enough to go on from after a crash.

    ``kind`` is ``generation`` (the sampled ids, with the forced prefix before them), ``observation``
    (appended ids), ``call_started`` or ``call_finished`` (of a tool that must not run twice), or ``resumed``
    (the first of every attempt but 0). ``payload`` is what the agent loop wrote and alone
    understands (``heddle.agent.packed``).
    """

    trajectory_id: TrajectoryId
    attempt: int
    """How often the trajectory was taken up again by another coordinator. Nothing of an older attempt is
    written any more once a newer one has written."""
    sequence: int
    """0, 1, 2 ...; a new attempt counts on from where the one before it had come to."""
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


@dataclass(frozen=True, slots=True)
class StartedCall:
    """A tool call that must not be delivered twice is about to start."""

    key: str
    """``ToolInvocation.key``."""


@dataclass(frozen=True, slots=True)
class FinishedCall:
    """It ended."""

    key: str
    result: ToolResult


@dataclass(frozen=True, slots=True)
class ResumedEntry:
    """A coordinator took the trajectory up again: whatever an older attempt still writes is late."""

    wall: float
    """Seconds that the trajectory had run by then."""


Entry: TypeAlias = GeneratedEntry | ObservedEntry | StartedCall | FinishedCall | ResumedEntry


class TrajectoryJournal:
    """The journal of one attempt at one trajectory: numbers the entries."""

    __slots__ = ("_journal", "_next", "_trajectory_id", "attempt")

    def __init__(self, journal: Journal, trajectory_id: TrajectoryId, attempt: int) -> None:
        self._journal = journal
        self._trajectory_id = trajectory_id
        self._next = 0
        self.attempt = attempt

    def go_on_after(self, entry: JournalEntry) -> None:
        """An earlier process wrote up to here: this is the attempt after its own."""
        self._next = entry.sequence + 1
        self.attempt = entry.attempt + 1

    async def append(self, kind: str, entry: Entry) -> None:
        """Returns when it is committed. Raises ``StoreError``."""
        sequence, self._next = self._next, self._next + 1
        await self._journal.append(
            JournalEntry(self._trajectory_id, self.attempt, sequence, kind, pack(entry))
        )


def decode_generated(payload: bytes) -> GeneratedEntry:
    """Raises ``pydantic.ValidationError`` on a foreign payload."""
    return unpack(_generated(), payload)


def decode_observed(payload: bytes) -> ObservedEntry:
    """Raises ``pydantic.ValidationError`` on a foreign payload."""
    return unpack(_observed(), payload)


def decode_started(payload: bytes) -> StartedCall:
    """Raises ``pydantic.ValidationError`` on a foreign payload."""
    return unpack(_started(), payload)


def decode_finished(payload: bytes) -> FinishedCall:
    """Raises ``pydantic.ValidationError`` on a foreign payload."""
    return unpack(_finished(), payload)


# Made when they are first needed: a start without open trajectories reads no entry.


@cache
def _generated() -> TypeAdapter[GeneratedEntry]:
    return TypeAdapter(GeneratedEntry)


@cache
def _observed() -> TypeAdapter[ObservedEntry]:
    return TypeAdapter(ObservedEntry)


@cache
def _started() -> TypeAdapter[StartedCall]:
    return TypeAdapter(StartedCall)


@cache
def _finished() -> TypeAdapter[FinishedCall]:
    return TypeAdapter(FinishedCall)
