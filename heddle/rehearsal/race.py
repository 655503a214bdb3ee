"""The rehearsal: an earlier batch is simulated on every candidate, and the hopeless ones are dropped early.

Several draws are made from the recorded trajectories, because the next batch will not be the last one again.
In each draw all candidates that are still in the race play the same trajectories. One is out as soon as it
has taken longer than the best so far by ``HOPELESS``, in the middle of its simulation, and a pool whose first
candidate is out is out with it; after each draw those are whose mean is behind by ``BEHIND``. Where two ways
on one pool took exactly the same time they did the same, so one of them goes on for both. The race ends when
one is left, or with the last draw.

Who wins is judged against the best *simple* candidate, which looks at no length and so does not depend on
predictions: another one is chosen where it did the same, or where it is faster by ``margin`` in the mean and
in no draw slower by more than that. A predictor that learns earns trust later than any rehearsal sees, so who
looks at lengths also plays with exact ones: where these make it slower by more than ``margin`` in a draw the
best simple candidate is chosen, and where they make it faster by ``margin`` in the mean, one that is as good
as the best simple candidate without them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from statistics import fmean

from heddle.control.build import PlaneSettings
from heddle.rehearsal.candidates import Candidate, candidate_pools, candidates_of
from heddle.simulate.compare import Experiment
from heddle.simulate.simulator import makespan_within
from heddle.simulate.workload import Workload

DRAWS = 4
MARGIN = 0.02
HOPELESS = 1.25
BEHIND = 1.08
CLOSE = 1.01
"""Times the makespan of the best simple candidate within which another is as good."""
EXACT = "oracle"
"""The predictor that knows the lengths of what is played."""


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What is rehearsed."""

    experiment: Experiment
    """The recorded batch, how to draw from it, and the machines. Its configurations play no part."""
    settings: PlaneSettings
    """As configured."""
    draws: int = DRAWS
    margin: float = MARGIN
    seed: int = 0
    """Of the first draw; the others follow it."""


@dataclass(slots=True)
class Entrant:
    """One candidate and how it does."""

    candidate: Candidate
    makespans: list[float] = field(default_factory=list)
    """Seconds, of each draw that it saw the end of."""
    dropped: bool = False
    """It was behind, and saw no further draw."""
    same_as: Candidate | None = None
    """Another way on the same pool that took exactly the same time, and went on in its place."""

    @property
    def mean_s(self) -> float:
        """Over its draws; infinite where it ended none."""
        return fmean(self.makespans) if self.makespans else float("inf")

    @property
    def running(self) -> bool:
        """Whether it plays the next draw."""
        return not self.dropped and self.same_as is None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The choice, and all that it was chosen from."""

    chosen: Entrant
    simple: Entrant | None
    """The best of those that look at no length, or who went on in its place; ``None``: all were hopeless."""
    entrants: Sequence[Entrant]
    """In the order in which they were tried."""
    simulations: int

    @property
    def gain(self) -> float:
        """Makespan of the best simple candidate over that of the chosen one: 1.0 where it is that one.

        ``HOPELESS`` where all of them were given up: it is at least that.
        """
        return HOPELESS if self.simple is None else self.simple.mean_s / self.chosen.mean_s


def rehearse(
    rehearsal: Rehearsal,
    *,
    pools: Sequence[Sequence[int]] | None = None,
    told: Callable[[str], None] = lambda line: None,
) -> Outcome:
    """Find the best candidate. Equal arguments find the same.

    ``pools`` are the only ones to choose from; without them the planners' and every homogeneous one.
    ``told`` hears of each draw's end. Raises ``ConfigError`` and ``InvalidRequest`` for what cannot be
    played.
    """
    experiment, settings = rehearsal.experiment, rehearsal.settings
    seeds = range(rehearsal.seed, rehearsal.seed + rehearsal.draws)
    if pools is None:
        lengths = [t.total_tokens for t in experiment.workload_of(seeds[0]).trajectories]
        degrees = [engine.tp_degree for engine in experiment.hardware.engines]
        pools = candidate_pools(settings, experiment.hardware.gpus, degrees, lengths)
    race = _Race(rehearsal, [Entrant(candidate) for candidate in candidates_of(settings, pools)])
    for number, seed in enumerate(seeds, 1):
        race.run_draw(seed)
        left = race.running()
        told(f"draw {number} of {len(seeds)}: {len(left)} of {len(race.entrants)} candidates left")
        if len(left) == 1:
            break
    return race.judged()


class _Race:
    """Single use."""

    def __init__(self, rehearsal: Rehearsal, entrants: Sequence[Entrant]) -> None:
        self.entrants = entrants
        self._rehearsal = rehearsal
        self._simulations = 0

    def running(self) -> list[Entrant]:
        return [entrant for entrant in self.entrants if entrant.running]

    def run_draw(self, seed: int) -> None:
        """All that still run, the best pool so far first: what it takes is the measure of the others."""
        workload = self._rehearsal.experiment.workload_of(seed)
        pools = [list(of_pool) for _, of_pool in groupby(self.running(), lambda e: e.candidate.pool)]
        best_s = float("inf")
        for of_pool in sorted(pools, key=lambda members: min(e.mean_s for e in members)):
            best_s = min(best_s, self._run_pool(of_pool, workload, seed, best_s))
        self._drop()

    def _run_pool(self, of_pool: Sequence[Entrant], workload: Workload, seed: int, best_s: float) -> float:
        """Seconds of the best of them."""
        for entrant in of_pool:
            settings = entrant.candidate.over(self._rehearsal.settings)
            makespan_s = self._play(settings, workload, seed, HOPELESS * best_s)
            if makespan_s is not None:
                entrant.makespans.append(makespan_s)
                best_s = min(best_s, makespan_s)
            elif entrant is of_pool[0]:
                for member in of_pool:
                    member.dropped = True
                break
            else:
                entrant.dropped = True
        _join_twins(of_pool)
        return best_s

    def _drop(self) -> None:
        """Take out who is behind the best of all, but never the best of the simple ones."""
        running = self.running()
        best_s = min(entrant.mean_s for entrant in running)
        spared = self._best_simple()
        for entrant in running:
            entrant.dropped = entrant is not spared and entrant.mean_s > BEHIND * best_s

    def judged(self) -> Outcome:
        """Lengths that nobody trusts yet may turn the choice of :meth:`_ahead_of`, either way."""
        simple = self._best_simple()
        chosen = self._ahead_of(simple)
        if simple is not None and not chosen.candidate.simple:
            if self._gain_of_lengths(chosen, simple) is None:
                simple = chosen = self._itself(simple)
        elif simple is not None:
            rival = self._close_to(simple)
            gain = None if rival is None else self._gain_of_lengths(rival, simple)
            if rival is not None and gain is not None and gain >= 1.0 + self._rehearsal.margin:
                chosen = rival
        return Outcome(chosen, simple, tuple(self.entrants), self._simulations)

    def _ahead_of(self, simple: Entrant | None) -> Entrant:
        """The fastest that is ahead of the best simple candidate, else that one."""
        running = sorted(self.running(), key=lambda entrant: entrant.mean_s)
        ahead = (entrant for entrant in running if simple is None or self._is_ahead(entrant, simple))
        chosen = next(ahead, simple)
        assert chosen is not None, "without a simple one everybody is ahead, and the best is never dropped"
        return chosen

    def _close_to(self, simple: Entrant) -> Entrant | None:
        """The best of those that look at lengths, if it is hardly slower while it trusts none."""
        others = (entrant for entrant in self.running() if not entrant.candidate.simple)
        best = min(others, key=lambda entrant: entrant.mean_s, default=None)
        return best if best is not None and best.mean_s <= CLOSE * simple.mean_s else None

    def _gain_of_lengths(self, entrant: Entrant, simple: Entrant) -> float | None:
        """By what factor it is faster than that, in the mean, when it knows all lengths.

        ``None`` where it is slower by more than the margin in a draw.
        """
        settings = replace(entrant.candidate.over(self._rehearsal.settings), predictor=EXACT)
        gains = []
        for seed, simple_s in enumerate(simple.makespans, self._rehearsal.seed):
            workload = self._rehearsal.experiment.workload_of(seed)
            known_s = self._play(settings, workload, seed, simple_s / (1.0 - self._rehearsal.margin))
            if known_s is None:
                return None
            gains.append(simple_s / known_s)
        return fmean(gains)

    def _play(self, settings: PlaneSettings, workload: Workload, seed: int, most_s: float) -> float | None:
        """The makespan, if it is at most this."""
        self._simulations += 1
        experiment = self._rehearsal.experiment
        options = replace(experiment.options, learned=None)
        return makespan_within(
            workload, settings, experiment.hardware, seed=seed, most_s=most_s, options=options
        )

    def _itself(self, stand_in: Entrant) -> Entrant:
        """The simple one, if another goes on in its place: it has that one's times."""
        if stand_in.candidate.simple:
            return stand_in
        found = next(e for e in self.entrants if e.candidate.simple and e.same_as == stand_in.candidate)
        found.makespans, found.same_as = list(stand_in.makespans), None
        return found

    def _is_ahead(self, entrant: Entrant, simple: Entrant) -> bool:
        ratios = [theirs / own for theirs, own in zip(simple.makespans, entrant.makespans, strict=True)]
        margin = self._rehearsal.margin
        return fmean(ratios) >= 1.0 + margin and min(ratios) >= 1.0 - margin

    def _best_simple(self) -> Entrant | None:
        """Or who goes on in its place."""
        stand_in = [e.same_as for e in self.entrants if e.candidate.simple and e.same_as is not None]
        simple = [e for e in self.running() if e.candidate.simple or e.candidate in stand_in]
        return min(simple, key=lambda entrant: entrant.mean_s, default=None)


def _join_twins(of_pool: Sequence[Entrant]) -> None:
    """Of those that took the same time one goes on for all, what is configured rather than what is simple."""
    first: dict[float, Entrant] = {}
    for entrant in sorted(of_pool, key=lambda entrant: entrant.candidate.simple):
        if not entrant.running:
            continue
        other = first.setdefault(entrant.makespans[-1], entrant)
        if other is not entrant:
            entrant.same_as = other.candidate
