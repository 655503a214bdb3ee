"""What can be rehearsed: pools of a budget, and ways of running trajectories on them.

Pools are every homogeneous one and the planners' own, mixed ones included. Ways are the settings as they are
configured and, to fall back on, the strongest simple ones: the order and placement of the preset ``sticky``,
and on several workers the same with a prompt's samples together. They are tried with and without the guard of
memory, which costs a little where memory suffices and saves much where it does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from heddle.allocation import SlotRule
from heddle.control.allocator import AllocatorOptions, make_allocator
from heddle.control.build import PlaneSettings
from heddle.planning.plan import AllocatorName
from heddle.presets import Choices, find_preset

SIMPLE = "sticky"
"""The preset to fall back on."""
TOGETHER = "sticky_group"
"""The placer that looks at no length either, and at who shares a prompt."""
FEWEST_LARGE = 2
"""Workers of the highest degree: with one alone, nothing could be placed badly."""
CONFIGURED = "configured"
FIXED = AllocatorName.FIXED.value


@dataclass(frozen=True, slots=True)
class Candidate:
    """One pool run in one way."""

    pool: tuple[int, ...]
    """Degrees of its workers, descending."""
    way: str
    choices: Choices
    """What differs from the configured settings, the pool included."""
    simple: bool
    """Whether it looks at no length."""

    @property
    def name(self) -> str:
        """Such as ``2 x tp4, configured``."""
        return f"{self.pool_name}, {self.way}"

    @property
    def pool_name(self) -> str:
        """Such as ``1 x tp4 + 4 x tp1``."""
        counts = Counter(self.pool)
        return " + ".join(f"{counts[degree]} x tp{degree}" for degree in sorted(counts, reverse=True))

    def over(self, settings: PlaneSettings) -> PlaneSettings:
        """The settings with this candidate's in their place."""
        return replace(settings, **self.choices)


def candidates_of(settings: PlaneSettings, pools: Iterable[Sequence[int]]) -> list[Candidate]:
    """Every way on every pool, pool after pool; ways that would be the same way twice count once."""
    found: dict[tuple[tuple[int, ...], PlaneSettings], Candidate] = {}
    for pool in pools:
        degrees = tuple(sorted(pool, reverse=True))
        for way, choices in _ways(settings, len(degrees)):
            named: Choices = {**choices, "allocator": FIXED, "pool": "+".join(map(str, degrees))}
            candidate = Candidate(degrees, way, named, simple=way.startswith(SIMPLE))
            found.setdefault((degrees, candidate.over(settings)), candidate)
    return list(found.values())


def candidate_pools(
    settings: PlaneSettings, gpus: int, degrees: Sequence[int], expected_tokens: Sequence[int]
) -> list[tuple[int, ...]]:
    """The planners' pools for these lengths, the configured one first, then the homogeneous ones.

    Each has its degrees descending. Raises ``ConfigError`` where the configured planner cannot plan.
    """
    slots = SlotRule(settings.slots, settings.slots_per_gpu)
    options = AllocatorOptions(settings.pool, slots, settings.profile, settings.seed)
    wanted = [make_allocator(settings.allocator, options)]
    if settings.profile is not None:
        wanted.append(make_allocator(AllocatorName.DRAIN.value, replace(options, equally_good=1.0)))
    planned = [allocator.allocate(gpus, expected_tokens) for allocator in wanted]
    pools = [tuple(sorted((spec.tp_degree for spec in specs), reverse=True)) for specs in planned]
    pools += [_filled(gpus, degree, degrees) for degree in sorted(degrees, reverse=True) if degree <= gpus]
    return list(dict.fromkeys(pools))


def parts_of(gpus: int, degrees: Sequence[int]) -> int:
    """Into how many equal parts a budget falls of which each has ``FEWEST_LARGE`` of the largest workers.

    What is best for one part with its share of the trajectories is taken to be best for all, and costs so
    many times less to find. 1 where the budget does not divide.
    """
    part = FEWEST_LARGE * max((degree for degree in degrees if degree <= gpus), default=gpus)
    return gpus // part if gpus % part == 0 else 1


def _filled(gpus: int, degree: int, degrees: Sequence[int]) -> tuple[int, ...]:
    """As many workers of this degree as fit, and as few as possible on what they leave."""
    pool = [degree] * (gpus // degree)
    while fitting := [smaller for smaller in degrees if smaller <= gpus - sum(pool)]:
        pool.append(max(fitting))
    return tuple(pool)


def _ways(settings: PlaneSettings, workers: int) -> Iterable[tuple[str, Choices]]:
    simple = find_preset(SIMPLE).choices
    together: Choices = {**simple, "placer": TOGETHER}
    if settings.kv_guard:
        # First: where memory is short, ways without a guard take long to simulate.
        yield f"{SIMPLE}, guarded", {**simple, "kv_guard": True}
        if workers > 1:
            yield f"{SIMPLE}, groups together, guarded", {**together, "kv_guard": True}
        yield CONFIGURED, {}
        yield f"{CONFIGURED}, no guard", {"kv_guard": False}
    else:
        yield CONFIGURED, {}
        if workers > 1:
            yield f"{SIMPLE}, groups together", together
    yield SIMPLE, simple
