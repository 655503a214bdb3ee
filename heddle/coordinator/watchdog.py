"""Looks for what nobody would ever finish: trajectories without an owner, permits without a holder.

By construction there are none: every open trajectory has a task, every task an owner that re-raises, and
every permit is given back on every way out. Where a defect makes one all the same, its batch would wait for
ever without a word. Found twice in a row it ends the coordinator, which goes on from the journal when it is
started anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from heddle.control.invariants import InvariantViolation
from heddle.control.plane import ControlPlane
from heddle.tools.manager import ToolGauges
from heddle.types import TrajectoryId, TrajectoryPhase


class Owners(Protocol):
    """Who knows the tasks of open trajectories."""

    def has_owner(self, trajectory_id: TrajectoryId) -> bool:
        """Whether a task runs this trajectory, or is about to."""
        ...

    def uses_its_slot(self, trajectory_id: TrajectoryId) -> bool:
        """Whether somebody generates for it, or holds a grant that was not taken up yet."""
        ...


class Watchdog:
    """Stateful: a suspicion is a finding when it is there again at the next look."""

    def __init__(self, plane: ControlPlane, owners: Owners, tools: Callable[[], ToolGauges]) -> None:
        self._plane = plane
        self._owners = owners
        self._tools = tools
        self._suspicions: frozenset[str] = frozenset()

    def look(self) -> None:
        """Linear in what is open. Raises ``InvariantViolation`` that names what nobody takes care of."""
        suspicions = frozenset(self._suspect())
        confirmed = suspicions & self._suspicions
        self._suspicions = suspicions
        if confirmed:
            raise InvariantViolation("; ".join(sorted(confirmed)))

    def _suspect(self) -> Iterator[str]:
        for trajectory_id, trajectory in self._plane.state.trajectories.items():
            if not self._owners.has_owner(trajectory_id):
                yield f"{trajectory_id} is {trajectory.phase} and nobody runs it"
            elif trajectory.phase is TrajectoryPhase.GENERATING and not self._owners.uses_its_slot(
                trajectory_id
            ):
                yield f"{trajectory_id} holds a slot of {trajectory.worker_id} and does not generate"
        tools = self._tools()
        if tools.queued and not tools.running:
            yield "tool calls wait though none runs: a permit is lost"
