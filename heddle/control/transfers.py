"""Accepted moves by transfer: which wait, which are under way, and who is next.

The paper's transfer scheduler (section 5.3): whenever a worker is free, the waiting move of the most urgent
trajectory whose source and target take part in no other transfer starts, and so on down the line. So what
runs at once never shares a worker, and a long trajectory is never behind a short one.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from heddle.types import TrajectoryId, WorkerId

_Place: TypeAlias = tuple[float, int]
"""Negated urgency, number of its acceptance: the order of the line."""


class MoveOutcome(StrEnum):
    """What became of an accepted move."""

    MOVED = "moved"
    FAILED = "failed"
    """The transfer came to nothing, and the trajectory stayed."""
    WITHDRAWN = "withdrawn"
    """The tools returned first, the trajectory ended, or one of the two workers went."""


class MoveRefusal(StrEnum):
    """Why a proposed move was not accepted."""

    ENDED = "ended"
    NOT_IN_TOOL = "not_in_tool"
    MOVING = "moving"
    """An earlier transfer of it is waiting or not answered yet."""
    NOT_AT_SOURCE = "not_at_source"
    THERE_ALREADY = "there_already"
    TARGET_NOT_READY = "target_not_ready"
    NO_MEMORY = "no_memory"
    """Its context does not fit beside what the target holds and expects."""


@dataclass(slots=True, eq=False)
class Move:
    """One accepted move by transfer."""

    trajectory_id: TrajectoryId
    source: WorkerId
    target: WorkerId
    context_tokens: int
    urgency: float
    number: int = 0
    """In the order of acceptance."""
    started_at: float | None = None
    """When it was ordered; ``None`` while it waits."""
    withdrawn: bool = False
    """Cancelled; where it was under way its answer is still awaited."""

    @property
    def under_way(self) -> bool:
        """Ordered and not answered yet."""
        return self.started_at is not None

    @property
    def endpoints(self) -> tuple[WorkerId, WorkerId]:
        """The two workers that it takes up."""
        return self.source, self.target


class TransferLine:
    """Moves in order, and the workers that they take up. O(log n) but for ``start``, O(n) at worst."""

    __slots__ = ("_accepted", "_busy", "_expected", "_line", "_moves")

    def __init__(self) -> None:
        self._moves: dict[TrajectoryId, Move] = {}
        self._line: list[tuple[_Place, Move]] = []
        """Those that wait."""
        self._busy: set[WorkerId] = set()
        self._expected: Counter[WorkerId] = Counter()
        """Context tokens on their way to each worker, or waiting to be."""
        self._accepted = 0

    def __contains__(self, trajectory_id: TrajectoryId) -> bool:
        return trajectory_id in self._moves

    def get(self, trajectory_id: TrajectoryId) -> Move | None:
        """The move of this trajectory, withdrawn ones included."""
        return self._moves.get(trajectory_id)

    def moves(self) -> Iterable[Move]:
        """All, in the order of acceptance."""
        return self._moves.values()

    @property
    def waiting(self) -> int:
        """How many have not started."""
        return len(self._line)

    @property
    def under_way(self) -> int:
        """How many await their answer, withdrawn ones included."""
        return len(self._moves) - len(self._line)

    def expected_tokens(self, worker_id: WorkerId) -> int:
        """Context that is to arrive at this worker."""
        return self._expected[worker_id]

    def add(self, move: Move) -> None:
        """Let it wait; its trajectory must have no other move."""
        self._accepted += 1
        move.number = self._accepted
        self._moves[move.trajectory_id] = move
        self._expected[move.target] += move.context_tokens
        insort(self._line, (_place(move), move), key=_key)

    def start(self, now: float) -> Sequence[Move]:
        """Everything that can start now, most urgent first; it is under way from here on."""
        chosen: list[Move] = []
        for _, move in self._line:
            if self._busy.isdisjoint(move.endpoints):
                self._busy.update(move.endpoints)
                move.started_at = now
                chosen.append(move)
        for move in chosen:
            self._leave_line(move)
        return chosen

    def withdraw(self, trajectory_id: TrajectoryId) -> Move | None:
        """Its trajectory stays. Returns its move, if it had one that was not withdrawn already."""
        move = self._moves.get(trajectory_id)
        if move is None or move.withdrawn:
            return None
        move.withdrawn = True
        self._expect_no_more(move)
        if not move.under_way:
            self._leave_line(move)
            del self._moves[trajectory_id]
        return move

    def answered(self, trajectory_id: TrajectoryId, source: WorkerId, target: WorkerId) -> Move | None:
        """The answer to a transfer came: it is over. ``None`` where no such transfer was under way."""
        move = self._moves.get(trajectory_id)
        if move is None or not move.under_way or move.endpoints != (source, target):
            return None
        del self._moves[trajectory_id]
        self._busy.difference_update(move.endpoints)
        if not move.withdrawn:
            self._expect_no_more(move)
        return move

    def _leave_line(self, move: Move) -> None:
        del self._line[bisect_left(self._line, _place(move), key=_key)]

    def _expect_no_more(self, move: Move) -> None:
        self._expected[move.target] -= move.context_tokens
        if not self._expected[move.target]:
            del self._expected[move.target]


def _place(move: Move) -> _Place:
    return -move.urgency, move.number


def _key(waiting: tuple[_Place, Move]) -> _Place:
    return waiting[0]
