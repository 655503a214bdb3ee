"""What may be written, and what a write that may not be is called. Shared by every store.

    * A journal entry is written once. The same content again is a no-op; another content under the same
      (trajectory, attempt, sequence) is a :class:`ConflictingWrite`.
    * A trajectory finishes once. The same record again is a no-op; another one is a
      :class:`ConflictingWrite`.
    * What belongs to an older attempt than the newest one in the journal, and every entry that comes after
      its trajectory has finished, is a :class:`LateWrite`.
    * An attempt counts on from where the one before it had come to. Where both wrote an entry of the same
      number, that of the newer one is in force.

Writes that are awaited one after the other take effect in that order. Writes that wait at the same time
may take effect in any order; the commits among them keep theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from heddle.agent.journal import JournalEntry
from heddle.errors import StoreError
from heddle.records import Trajectory, encode_trajectory
from heddle.store.gates import GateViolation
from heddle.store.ports import StoredBatch
from heddle.types import BatchId, TrajectoryId


class LateWrite(StoreError):
    """A write of an attempt that a newer one has superseded, or into a trajectory that has finished."""


class ConflictingWrite(StoreError):
    """A write that contradicts what is already committed under the same key."""


@dataclass(frozen=True, slots=True)
class FinishedRow:
    """A finished trajectory as it is stored: the encoded record and the fields that are queried."""

    trajectory_id: TrajectoryId
    batch_id: BatchId
    attempt: int
    status: str
    sampled_tokens: int
    record: bytes
    violations: tuple[GateViolation, ...] = ()
    """Why another record was refused for which this one stands."""

    @property
    def gates(self) -> list[str]:
        """The gates that refused, each once, by name."""
        return sorted({violation.gate.value for violation in self.violations})


@dataclass(frozen=True, slots=True)
class CancelMark:
    """The batch was cancelled."""

    batch_id: BatchId


@dataclass(frozen=True, slots=True)
class FinishMark:
    """The batch ended, ``at`` seconds since the epoch. The first mark stays."""

    batch_id: BatchId
    at: float


Write: TypeAlias = StoredBatch | CancelMark | FinishMark | JournalEntry | FinishedRow
"""Everything that can be asked of a writer."""


def size_bytes(write: Write) -> int:
    """What the write carries; the ids beside it are not worth counting."""
    match write:
        case JournalEntry():
            return len(write.payload)
        case FinishedRow():
            return len(write.record)
        case StoredBatch():
            return len(write.request)
        case CancelMark() | FinishMark():
            return 0


def finished_row(trajectory: Trajectory, violations: Sequence[GateViolation] = ()) -> FinishedRow:
    """Encode a record. Raises ``StoreError`` where it cannot be written as JSON."""
    try:
        record = encode_trajectory(trajectory)
    except TypeError as exc:  # orjson's own error derives from it: foreign types, lone surrogates
        raise StoreError(f"trajectory {trajectory.trajectory_id} cannot be encoded: {exc}") from exc
    return FinishedRow(
        trajectory_id=TrajectoryId(trajectory.trajectory_id),
        batch_id=BatchId(trajectory.batch_id),
        attempt=trajectory.attempt,
        status=trajectory.status.value,
        sampled_tokens=trajectory.sampled_tokens,
        record=record,
        violations=tuple(violations),
    )


def in_force(entries: Iterable[JournalEntry]) -> list[JournalEntry]:
    """Of one trajectory's entries, ordered by attempt and sequence, those to go on from, by sequence."""
    newest = {entry.sequence: entry for entry in entries}
    return [newest[sequence] for sequence in sorted(newest)]


def superseded(trajectory_id: TrajectoryId, attempt: int, newest: int) -> LateWrite:
    """The refusal of a write by an older attempt."""
    return LateWrite(f"trajectory {trajectory_id}: attempt {attempt} is superseded by attempt {newest}")


def already_finished(entry: JournalEntry) -> LateWrite:
    """The refusal of an entry that comes after the record."""
    return LateWrite(
        f"trajectory {entry.trajectory_id} has finished; "
        f"entry {entry.sequence} of attempt {entry.attempt} is late"
    )


def entry_differs(entry: JournalEntry) -> ConflictingWrite:
    """The refusal of an entry whose place is taken by another content."""
    return ConflictingWrite(
        f"trajectory {entry.trajectory_id}: entry {entry.sequence} of attempt {entry.attempt} exists with "
        "another content"
    )


def record_differs(row: FinishedRow) -> ConflictingWrite:
    """The refusal of a second, different record."""
    return ConflictingWrite(f"trajectory {row.trajectory_id} has finished with another record")


def no_such_batch(batch_id: BatchId) -> StoreError:
    """The refusal to mark a batch that was never added."""
    return StoreError(f"there is no batch {batch_id}")
