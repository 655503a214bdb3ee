"""The elastic tail: few trajectories are left, so idle GPUs become a larger worker for the last ones.

Judged by the time in which workers drain. As they are, the last one ends in ``stay``. Reshaped, some workers
are drained (those that end first, idle ones before all; what residents they have goes to the others), the
others go on for as long as a start takes, and then the longest go over to the new workers as long as that
makes the last one end sooner. Off that saving go the moves, the start, and the start that it will take to
grow back, for the share of the pool that is away. It must be a good part of what was to wait for.

Tools take the time that they take on any worker; they count for nothing here, on neither side.

Lengths are as predicted only as far as predictions are trusted; for the rest the residual lengths of earlier
trajectories stand, which are nothing while nothing is known. So without knowledge the pool stays.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from heddle.control.ports import Reshape
from heddle.planning.drains import Drain, Weights, cap_of, tokens_within
from heddle.planning.profile import DegreeProfile, required
from heddle.planning.trust import earned
from heddle.reshaping.options import ReshapingOptions
from heddle.reshaping.residual import Residuals
from heddle.types import TrajectoryId, TrajectoryPhase, TrajectoryView, WorkerId, WorkerView

LEAST_SHARE = 0.1
"""Of what there is to wait for, that a reshape must save: lengths are estimates, starts are certain."""
STARTS_AHEAD = 1.5
"""Times a start that must be left to wait for, or nothing is looked at."""
MEMBERS_PER_GPU = 8
"""Open trajectories above which a batch has not come to its tail."""
CROWDING = 8
"""Residents that each worker which stays may get of those that are drained, in the mean."""


@dataclass(slots=True, eq=False)
class _Group:
    """One worker, as it is or as it would be, and what it has to do."""

    worker_id: WorkerId | None
    """``None``: it would be started."""
    degree: DegreeProfile
    weights: Weights
    cap: int
    members: list[_Member]
    seconds: float = 0.0
    """Until it has drained."""
    drain: Drain = field(init=False)

    def __post_init__(self) -> None:
        self.look()

    def look(self) -> None:
        """Members have changed."""
        self.drain = Drain([member.tokens for member in self.members], self.weights, self.cap)
        self.seconds = self.drain.seconds

    def later(self, seconds: float) -> _Group:
        """The same after ``seconds``."""
        ascending = sorted(member.tokens for member in self.members)
        done = tokens_within(ascending, self.weights, self.cap, seconds)
        left = [_Member(m.name, m.tokens - done, m.context_tokens) for m in self.members if m.tokens > done]
        return _Group(self.worker_id, self.degree, self.weights, self.cap, left)

    def joined_by(self, member: _Member) -> _Group:
        """The same with one member more."""
        return _Group(self.worker_id, self.degree, self.weights, self.cap, [*self.members, member])


@dataclass(frozen=True, slots=True)
class _Member:
    name: TrajectoryId
    tokens: float
    """To generate, the cost of its move included where it has one."""
    context_tokens: int


class TailReshaper:
    """See the module. O(candidates * members * new workers) a look, some milliseconds in the worst case."""

    name = "tail"

    def __init__(self, options: ReshapingOptions) -> None:
        """Raises ``ConfigError`` where ``options`` lack a profile."""
        profile = required(options.profile, f"reshaper {self.name}")
        self._options = options
        self._degrees = {degree.tp_degree: degree for degree in profile.degrees}
        self._weights: dict[int, Weights] = {}
        self._residuals = Residuals()
        self._members = 0
        """Of all workers at this look."""

    def observe_finished(self, trajectory: TrajectoryView) -> None:
        """Remember its length."""
        self._residuals.observe(trajectory.generated_tokens)

    def propose(self, workers: Sequence[WorkerView], start_s: float) -> Reshape | None:
        """See the module."""
        gpus = sum(worker.tp_degree for worker in workers)
        members = sum(worker.resident for worker in workers)
        if not members or members > MEMBERS_PER_GPU * gpus or not self._knows(workers):
            return None
        groups = sorted(self._groups(workers), key=lambda group: (group.seconds, group.worker_id))
        stay_s = groups[-1].seconds
        if stay_s < STARTS_AHEAD * start_s:
            return None
        best: Reshape | None = None
        for drained, degrees in self._candidates(groups):
            end_s = self._end_s(groups[:drained], groups[drained:], degrees, start_s)
            held = sum(group.degree.tp_degree for group in groups[:drained])
            saved_s = stay_s - end_s - start_s * held / gpus
            if saved_s > LEAST_SHARE * stay_s and (best is None or saved_s > best.saved_s):
                names = tuple(group.worker_id for group in groups[:drained] if group.worker_id is not None)
                best = Reshape(names, degrees, saved_s)
        return best

    def assign(
        self, workers: Sequence[WorkerView], fresh: Collection[WorkerId]
    ) -> Mapping[TrajectoryId, WorkerId]:
        """The longest of whoever ends last, as long as that makes the last one end sooner."""
        if not self._knows(workers):
            return {}
        groups = self._groups(workers)
        old = [group for group in groups if group.worker_id not in fresh]
        new = [group for group in groups if group.worker_id in fresh]
        moved, _ = self._shift(old, new)
        return moved

    def _knows(self, workers: Sequence[WorkerView]) -> bool:
        return all(worker.tp_degree in self._degrees for worker in workers)

    def _groups(self, workers: Sequence[WorkerView]) -> list[_Group]:
        trust = earned(self._options.trust())
        self._members = sum(worker.resident for worker in workers)
        return [self._group(worker, trust) for worker in workers]

    def _group(self, worker: WorkerView, trust: float) -> _Group:
        going = [t for t in worker.residents.values() if t.phase is not TrajectoryPhase.ENDING]
        members = [_Member(t.trajectory_id, self._left(t, trust), t.context_tokens) for t in going]
        context = sum(t.context_tokens for t in going) / len(going) if going else 0.0
        degree = self._degrees[worker.tp_degree]
        cap = cap_of(worker, context)
        return _Group(worker.worker_id, degree, self._weights_for(degree, cap), cap, members)

    def _left(self, trajectory: TrajectoryView, trust: float) -> float:
        """Tokens, hedged: see the module."""
        predicted = trajectory.predicted_remaining_tokens or 0.0
        return trust * predicted + (1 - trust) * self._residuals.median(trajectory.generated_tokens)

    def _candidates(self, groups: Sequence[_Group]) -> Iterator[tuple[int, tuple[int, ...]]]:
        """How many of ``groups`` to drain from the first on, and the degrees to start in their place."""
        for degree in self._degrees:
            count = 1
            while (drained := _holding(groups, count * degree)) is not None:
                staying = groups[drained:]
                evacuated = sum(len(group.members) for group in groups[:drained])
                if degree > staying[-1].degree.tp_degree and evacuated <= CROWDING * len(staying):
                    yield drained, (degree,) * count
                count *= 2

    def _end_s(
        self, drained: Sequence[_Group], staying: Sequence[_Group], degrees: Sequence[int], start_s: float
    ) -> float:
        """Until the last one would have ended."""
        kept = list(staying)
        evacuated = [member for group in drained for member in group.members]
        for member in sorted(evacuated, key=lambda member: -member.tokens):
            place = min(range(len(kept)), key=lambda i: kept[i].drain.with_member(member.tokens))
            cost_s = self._prefill_s(member, kept[place].degree)
            kept[place] = kept[place].joined_by(_delayed(member, cost_s, kept[place]))
        later = [group.later(start_s) for group in kept]
        context = max((m.context_tokens for group in later for m in group.members), default=0)
        _, end_s = self._shift(later, [self._started(degree, context) for degree in degrees])
        return start_s + end_s

    def _started(self, tp_degree: int, context_tokens: int) -> _Group:
        degree = self._degrees[tp_degree]
        room = degree.concurrency(context_tokens)
        slots = self._options.slots(tp_degree)
        cap = max(1, slots if room is None else min(slots, room))
        return _Group(None, degree, self._weights_for(degree, cap), cap, [])

    def _shift(
        self, old: Sequence[_Group], new: Sequence[_Group]
    ) -> tuple[Mapping[TrajectoryId, WorkerId], float]:
        """Move members from ``old`` to ``new``; who moved where, and the seconds until all have drained."""
        moved: dict[TrajectoryId, WorkerId] = {}
        while old and new:
            source = max(old, key=lambda group: group.seconds)
            if not source.members:
                break
            member = max(source.members, key=lambda member: member.tokens)
            target = min(new, key=lambda group: group.drain.with_member(member.tokens))
            arriving = _delayed(member, self._move_s(member, target.degree), target)
            if target.drain.with_member(arriving.tokens) >= source.seconds:
                break
            source.members.remove(member)
            target.members.append(arriving)
            source.look()
            target.look()
            if target.worker_id is not None:
                moved[member.name] = target.worker_id
        return moved, max(group.seconds for group in (*old, *new))

    def _move_s(self, member: _Member, target: DegreeProfile) -> float:
        rate = self._options.transfer_tokens_per_s()
        return self._prefill_s(member, target) if rate is None else member.context_tokens / rate

    def _prefill_s(self, member: _Member, target: DegreeProfile) -> float:
        """0.0 where nobody measured it."""
        rate = target.prefill_tokens_per_s
        return member.context_tokens / rate if rate else 0.0

    def _weights_for(self, degree: DegreeProfile, cap: int) -> Weights:
        """For as many members as there are, all on one worker."""
        most = max(cap, self._members) + 2
        known = self._weights.get(degree.tp_degree)
        if known is None or known.most < most:
            known = self._weights[degree.tp_degree] = Weights(degree, 2 * most)
        return known


def _holding(groups: Sequence[_Group], gpus: int) -> int | None:
    """How many of the first hold so many GPUs, if one is left then."""
    held = 0
    for index, group in enumerate(groups[:-1]):
        held += group.degree.tp_degree
        if held >= gpus:
            return index + 1
    return None


def _delayed(member: _Member, seconds: float, target: _Group) -> _Member:
    """With what its move takes, in tokens of the target alone."""
    return _Member(member.name, member.tokens + seconds / target.weights.step_s(1), member.context_tokens)
